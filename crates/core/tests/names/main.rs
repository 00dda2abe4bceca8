//! Names: directories of every shape under random operations, listings during changes, the errors
//! of POSIX, orphans, full volumes, threads. The judges are a model in memory, e2fsck, debugfs and
//! an independent reader.

mod big;
mod collisions;
mod damage;
mod image;
mod inline;
mod kernel;
mod listing;
mod model;
mod orphans;
mod pairs;
mod posix;
mod read_only;
mod redo;
mod space;
mod steps;
mod threads;
