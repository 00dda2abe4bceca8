//! Names: directories of every shape under random operations, listings that survive changes, the errors that POSIX
//! asks for, and damage. The judges are a model in memory, e2fsck, debugfs and an independent reader.

mod big;
mod image;
mod listing;

mod model;
