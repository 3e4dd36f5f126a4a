//! Timelines of boots as a table and as a picture.
