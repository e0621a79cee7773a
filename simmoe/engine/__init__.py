"""When: discrete events over a task graph; knows tasks, streams and seconds only."""
