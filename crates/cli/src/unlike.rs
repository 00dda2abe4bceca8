//! What the user is told of a file that is no volume.

use std::path::Path;

use crate::failure::Failure;
use crate::holds::{self, Kind};
use crate::part;
use crate::size::Size;

/// Explains that a file has no superblock that can be decoded: says what it is instead, and what
/// the user can do.
pub(crate) fn not_a_volume(image: &Path, why: impl Into<Failure>) -> Failure {
    let shown = image.display();
    let unlike = |what: String| Failure::new(format!("{shown}: {what}"));
    // Of a part, the message about the superblock says enough.
    let found = if part::is_part(image) {
        Err(Failure::said())
    } else {
        part::held(image)
    };
    let holds = match found {
        Err(_) => return why.into().context(&shown),
        Ok(None) => {
            let size = image.metadata().map_or(0, |m| m.len());
            let what = match size {
                0 => "no volume: it is empty".to_owned(),
                _ => format!("no volume: {} of zeros", Size(size)),
            };
            return unlike(what).advise(format!("make one: stetfs mkfs {shown} --size 1G"));
        }
        Ok(Some(holds)) => holds,
    };
    let fsck = || {
        format!(
            "if this is an ext4 volume, e2fsck may find a copy of its superblock: stetfs fsck \
                {shown}"
        )
    };
    match &holds.kind {
        Kind::NandPart => unlike("no volume on this NAND part".to_owned())
            .advise(format!("make one: stetfs mkfs {shown}")),
        Kind::Ext => why.into().context(&shown).advise(fsck()),
        Kind::Data => unlike("no ext4 volume: its content is unknown".to_owned()).advise(fsck()),
        Kind::PartitionTable(kind, list) if !list.is_empty() => {
            let list = part::listed(list);
            let what = format!("no volume, but a disk with a partition table ({kind}):{list}");
            let failure = unlike(what);
            holds::advice(&holds)
                .into_iter()
                .fold(failure, Failure::advise)
        }
        _ => {
            let but = match holds.kind {
                Kind::ExtOfBlocks(_) => "blocks of 1, 2 and 4 KiB are supported",
                _ => "no ext4 volume",
            };
            let failure = unlike(format!("it holds {holds}; {but}"));
            let advice = holds::advice(&holds);
            advice.into_iter().fold(failure, Failure::advise)
        }
    }
}
