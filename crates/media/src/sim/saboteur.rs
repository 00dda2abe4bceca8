//! Bugs that can be planted in a medium: flushes and fences of one cause that do nothing.
//!
//! They are the same for every scheme, so they are planted here and not in each scheme.

use stetfs_planted::{Bug, planted};

use crate::tag::Cause;

/// Whether the planted bug drops the flushes and fences of this cause, although their callers rely
/// on them.
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
