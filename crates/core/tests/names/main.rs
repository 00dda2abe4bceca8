//! Names: directories of every shape under random operations, listings that survive changes, the
//! errors that POSIX asks for, orphans, full volumes and threads. The judges are a model in memory,
//! e2fsck, debugfs and an independent reader.

mod big;
mod collisions;
mod damage;
mod image;
mod kernel;
mod listing;
mod model;
mod orphans;
mod posix;
mod space;
mod threads;
