//! A quick comparison of a block in memory with its new content. It costs no more than loading the
//! block.

use stetfs_format::width::{u64_as_usize, usize_as_u64};
use stetfs_media::pmem::LINE;
use stetfs_media::{Class, Pmem, Tag};

use stetfs_scheme::{Result, differing_bytes};

/// Returns true when less than `least` bytes of the block at `start` differ from `content`.
///
/// It looks at eight cache lines first, one in each eighth of the block: if more than half of each
/// differs, it guesses that at least `least` bytes of the block do. Each line is at another place
/// in its eighth, because changes often repeat at the same place. A wrong guess costs bytes of the
/// log and nothing else.
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
    if least <= content.len() {
        // Load all lines before comparing the first, because none is in the processor's cache.
        for (i, old) in old.chunks_exact_mut(line).take(LOOKS).enumerate() {
            pmem.load(start + usize_as_u64(look(i)), old, tag)?;
        }
        let mut looked = old.chunks_exact(line).take(LOOKS).enumerate();
        if looked.all(|(i, old)| differing_bytes(old, &content[look(i)..look(i) + line]) > line / 2)
        {
            return Ok(false);
        }
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
