//! Whose a region of persistent memory beside the volume is.
//!
//! The region begins with a [`LogHeader`]; so does block 1 of the volume's journal area, as long as the superblock says that the newest content is not
//! at home. Only together they tell that the one belongs to the other: by the volume's UUID, and by an epoch that is another one each
//! time a region is begun.
//!
//! | volume | region | done | why that is right |
//! |---|---|---|---|
//! | no mark | of any volume, closed, or none | a new one | everything that was in it is home |
//! | no mark | open, of another volume | error | that volume's newest content is in it |
//! | no mark | open, of this one, with something in it | error | a copy of this volume needs it |
//! | no mark | open, of this one, empty | a new one | the mount was cut short before it set the mark |
//! | mark | none, of another volume, scheme or epoch | error | the newest content is in another region |
//! | mark | of this volume and epoch, closed | it is opened again, empty | everything was home before it said so |
//! | mark | of this volume and epoch, open | recovery | |

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use stetfs_format::Corrupt;
use stetfs_format::private_log::{LOG_STATE_OFFSET, LogHeader, Tail};
use stetfs_media::{Cause, Class, Pmem, Tag};

use super::jbd2::area::Area;
use crate::error::{JournalError, Result};
use crate::scheme::{About, OpenArgs};

const CONTROL: Tag = Tag::new(Class::Journal, Cause::Control);
const RECOVERY: Tag = Tag::new(Class::Journal, Cause::Recovery);

pub(super) const LOST: &str =
    "what was committed last is in another region, without which the volume cannot be used";

/// A region that may be used by this volume.
pub(super) enum Claim {
    /// It is to be begun with this header.
    New(LogHeader),
    /// It has been closed: nothing in it counts.
    Closed(LogHeader),
    /// Something may be in it.
    Left(LogHeader),
}

/// The memory that the mount was given.
pub(super) fn memory(about: &About, args: &OpenArgs) -> Result<Arc<dyn Pmem>> {
    args.nvm.clone().ok_or_else(|| {
        JournalError::Nvm(format!(
            "scheme {} needs some: mount with nvm=FILE (or `stetfs fsck --nvm FILE`)",
            about.name
        ))
    })
}

/// Finds out whose the region is; `holds_any` tells whether something is in one that is open. Nothing is written.
pub(super) fn claim(
    about: &About,
    args: &OpenArgs,
    area: &Area,
    pmem: &dyn Pmem,
    holds_any: impl FnOnce(&LogHeader) -> Result<bool>,
) -> Result<Claim> {
    let unusable = |why: String| Err(JournalError::Nvm(why));
    let shown = pmem.describe();
    let found = read(pmem)?;
    if !args.has_private_log {
        if let Ok(found) = &found
            && !found.is_closed
            && (found.uuid != args.uuid || holds_any(found)?)
        {
            return unusable(format!(
                "{shown} holds what another volume, or a copy of this one, has not brought home yet"
            ));
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        return Ok(Claim::New(LogHeader {
            scheme: about.name.to_owned(),
            uuid: args.uuid,
            epoch: now.unwrap_or_default().as_nanos() as u64,
            is_closed: false,
            tail: Tail::from_word(0),
        }));
    }
    let mut raw = vec![0; args.block_size];
    area.read(1, &mut raw)?;
    let ours = LogHeader::decode(&raw)?;
    let Ok(found) = found else {
        return unusable(format!(
            "{shown} holds nothing of scheme {}; {LOST}",
            about.name
        ));
    };
    if found.scheme != about.name || found.uuid != args.uuid {
        return unusable(format!("{shown} belongs to another volume; {LOST}"));
    }
    if found.epoch != ours.epoch {
        return unusable(format!(
            "{shown} is a region that the volume had at another time; {LOST}"
        ));
    }
    if found.is_closed {
        return Ok(Claim::Closed(found));
    }
    if !args.writable {
        return unusable(format!(
            "{shown} must be recovered, which needs a writable volume"
        ));
    }
    Ok(Claim::Left(found))
}

fn read(pmem: &dyn Pmem) -> Result<Result<LogHeader, Corrupt>> {
    let mut raw = [0; LogHeader::SIZE];
    if pmem.size() >= raw.len() as u64 {
        pmem.load(0, &mut raw, RECOVERY)?;
    }
    Ok(LogHeader::decode(&raw))
}

/// Begins a region, of which `prepare` stores what is behind the header, and tells the volume; durable when it returns.
pub(super) fn begin(
    pmem: &dyn Pmem,
    area: &Area,
    header: &LogHeader,
    prepare: impl FnOnce() -> Result<()>,
) -> Result<()> {
    // The first word of the header goes first and comes last: torn between, it would be the old one, open again.
    store_word(pmem, 0, 0)?;
    prepare()?;
    let mut block = vec![0; area.block_size];
    header.encode(&mut block);
    let (magic, rest) = block[..LogHeader::SIZE]
        .split_first_chunk()
        .expect("a header");
    pmem.store_nt(8, rest, CONTROL)?;
    pmem.fence(Cause::Control)?;
    store_word(pmem, 0, u64::from_le_bytes(*magic))?;
    area.write_record(1, &block, Cause::Control)
}

/// Closes it or opens it again, in one store; durable when it returns.
pub(super) fn write_state(pmem: &dyn Pmem, is_closed: bool) -> Result<()> {
    store_word(
        pmem,
        LOG_STATE_OFFSET as u64,
        LogHeader::state_word(is_closed),
    )
}

fn store_word(pmem: &dyn Pmem, offset: u64, word: u64) -> Result<()> {
    pmem.store_nt(offset, &word.to_le_bytes(), CONTROL)?;
    Ok(pmem.fence(Cause::Control)?)
}
