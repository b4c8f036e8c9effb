"""Attribution methods: score patches for a prediction. One module per family of methods."""
