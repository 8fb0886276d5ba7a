// Lets a folder without sources be a library.
