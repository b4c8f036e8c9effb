"""Write a static site: the page's questions are answered in the visitor's browser."""
