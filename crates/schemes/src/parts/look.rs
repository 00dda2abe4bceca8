//! A look at what a block's new content changes, where the block lies in memory: it costs as much
//! as loading the block at most.

use stetfs_format::width::{u64_as_usize, usize_as_u64};
use stetfs_media::pmem::LINE;
use stetfs_media::{Class, Pmem, Tag};

use stetfs_scheme::{Result, differing_bytes};

/// Whether less than `least` bytes of the block at `start` differ from `content`.
///
/// One line in eight tells most overwrites that change nearly everything; each at another place,
/// since what changes in a part of a block often changes in the same place of others. A wrong guess
/// costs bytes of the log and nothing else.
pub(crate) fn changes_less(
    pmem: &dyn Pmem,
    start: u64,
    content: &[u8],
    least: usize,
) -> Result<bool> {
    const PIECE: usize = 512;
    const LOOKS: usize = 8;
    let tag = Tag::read(Class::Data);
    let (mut old, mut changed) = ([0; PIECE], 0);
    let (part, line) = (content.len() / LOOKS, u64_as_usize(LINE));
    let look = |i: usize| i * part + i * 3 % (part / line) * line;
    let mut all_differ = least <= content.len();
    for at in (0..LOOKS).map(look) {
        let old = &mut old[..line];
        if all_differ {
            pmem.load(start + usize_as_u64(at), old, tag)?;
            all_differ = differing_bytes(old, &content[at..at + line]) > line / 2;
        }
    }
    if all_differ {
        return Ok(false);
    }
    for (i, new) in (0..).zip(content.as_chunks::<PIECE>().0) {
        pmem.load(start + i * usize_as_u64(PIECE), &mut old, tag)?;
        changed += differing_bytes(&old, new);
        if changed >= least {
            return Ok(false);
        }
    }
    Ok(true)
}
