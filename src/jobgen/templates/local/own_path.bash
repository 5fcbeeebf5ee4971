script=$0
