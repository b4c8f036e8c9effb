"""Write files: pages, sites, films, numbers and model cards."""
