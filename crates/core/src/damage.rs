//! What happens when damage is found in operation (`ext4_handle_error`).
//!
//! The volume is marked: `s_state` says that it has errors, and the superblock describes the first
//! and the latest, so that the next e2fsck looks. Then `errors=` decides. `continue` keeps the
//! journal running. `remount-ro` and `panic` stop it: the operation that met the damage may be half
//! done, and must not become durable.

use std::panic::Location;
use std::sync::atomic::Ordering;

use stetfs_format::{Corrupt, Place, State, Superblock};
use stetfs_journal::JournalError;

use crate::error::Error;
use crate::mount::superblock;
use crate::options::OnError;
use crate::scope::Scope;
use crate::volume::{Volume, VolumeState};

/// The kernel's code for EFSCORRUPTED in `s_*_error_errcode` (`EXT4_ERR_EFSCORRUPTED`).
const ERRCODE_CORRUPTED: u8 = 15;

/// Marks the volume after an operation has met damage. The caller holds no lock and no handle.
#[track_caller]
pub(crate) fn found(vol: &Volume, error: &Error) {
    tracing::error!("{}: {error}", vol.dev.describe());
    let line = Location::caller().line();
    let read_only =
        vol.state.fetch_or(VolumeState::ERROR, Ordering::Relaxed) & VolumeState::READ_ONLY != 0;
    if read_only {
        return;
    }
    let now = vol.clock.seconds();
    let place = place_of(error);
    match vol.on_error() {
        OnError::Continue => {
            let marked = Scope::of(vol).with_handle(1, |h| {
                vol.update_super(h, |sb| mark(sb, now, line, place))?;
                Ok(h.tid())
            });
            if let Ok(tid) = marked {
                let _ = vol.journal.commit(tid);
            }
        }
        OnError::RemountReadOnly => {
            vol.state
                .fetch_or(VolumeState::READ_ONLY, Ordering::Relaxed);
            stop(vol, error, now, line);
        }
        OnError::Panic => {
            stop(vol, error, now, line);
            tracing::error!("{}: mounted with errors=panic", vol.dev.describe());
            std::process::abort();
        }
    }
}

/// Stops the journal and marks the superblock on the device.
fn stop(vol: &Volume, error: &Error, now: u64, line: u32) {
    vol.journal.abort(JournalError::Unusable(error.to_string()));
    let place = place_of(error);
    mark(&mut vol.sb.write(), now, line, place);
    if let Err(e) = superblock::store(&*vol.dev, |sb| mark(sb, now, line, place)) {
        tracing::error!("{}: cannot mark the volume: {e}", vol.dev.describe());
    }
}

/// Returns the inode and the block for the superblock's record; 0 where the error names none.
fn place_of(error: &Error) -> (u32, u64) {
    match error {
        Error::CorruptAt(found) => match found.place {
            Place::Inode(ino) | Place::FileBlock(ino, _) => (ino.0, 0),
            Place::InodeBlock(ino, block) => (ino.0, block.0),
            Place::Block(block) => (0, block.0),
            _ => (0, 0),
        },
        Error::Corrupt(found) => match **found {
            Corrupt::InodeChecksum { ino, .. }
            | Corrupt::InodeExtraSize { ino, .. }
            | Corrupt::InodeMode { ino, .. }
            | Corrupt::InodeSize { ino, .. } => (ino.0, 0),
            Corrupt::InodeFileAcl { ino, block } => (ino.0, block.0),
            _ => (0, 0),
        },
        _ => (0, 0),
    }
}

fn mark(sb: &mut Superblock, now: u64, line: u32, (ino, block): (u32, u64)) {
    const FUNC: &[u8] = b"stetfs";
    let mut func = [0; 32];
    func[..FUNC.len()].copy_from_slice(FUNC);
    sb.state |= State::ERROR;
    if sb.error_count == 0 {
        sb.first_error_time = now;
        sb.first_error_func = func;
        sb.first_error_line = line;
        (sb.first_error_ino, sb.first_error_block) = (ino, block);
        sb.first_error_errcode = ERRCODE_CORRUPTED;
    }
    sb.last_error_time = now;
    sb.last_error_func = func;
    sb.last_error_line = line;
    (sb.last_error_ino, sb.last_error_block) = (ino, block);
    sb.last_error_errcode = ERRCODE_CORRUPTED;
    sb.error_count = sb.error_count.saturating_add(1);
}
