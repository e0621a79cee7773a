"""What should be: plans for a cluster of unlike devices, all judged by the simulator."""
