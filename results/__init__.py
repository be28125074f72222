"""Published studies; a package, so that studies can import each other whatever else is called results."""
