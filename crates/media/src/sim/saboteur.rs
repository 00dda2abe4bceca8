//! Bugs that can be planted in a medium: flushes and fences of one cause that do nothing.
//!
//! They are the same for every scheme, and so they are here and not in each of them.

use stetfs_planted::{Bug, planted};

use crate::tag::Cause;

/// What has this cause is not made durable, although its caller takes it for that.
pub(super) fn drops(cause: Cause) -> bool {
    let dropped = match planted() {
        Some(Bug::MissingBodyFlush) => Cause::Log,
        Some(Bug::MissingRecordFlush) => Cause::CommitRecord,
        Some(Bug::MissingCheckpointFlush) => Cause::Checkpoint,
        Some(Bug::MissingReplayFlush) => Cause::Recovery,
        Some(Bug::UnflushedOverwrite | Bug::LateData) => Cause::Home,
        _ => return false,
    };
    cause == dropped
}
