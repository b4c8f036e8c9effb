"""Attribution: which patches an answer rests on. One family of methods a file, all over a `Trace`."""
