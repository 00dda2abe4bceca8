//! The bytes of one file, from a source to a copy that was just opened.
//!
//! A file may change while it is read, and its length may be other than `stat` says. So it is read
//! to its end, whatever was known of it before. Holes stay holes.

use stetfs_format::width::{u64_as_usize, usize_as_u64};

use crate::failure::{DAMAGED, Explain, Failure, Result};
use crate::tree::{Item, Source};

/// Bytes that are read and written at once.
const CHUNK: usize = 1 << 20;

/// Copies the contents of one file after the other.
pub(super) struct Copier {
    buffer: Vec<u8>,
}

impl Copier {
    pub(super) fn new() -> Self {
        Self {
            buffer: vec![0; CHUNK],
        }
    }

    /// Copies all bytes, but at most `left`, from which it takes what it copies. It calls
    /// `progress` with the number of bytes of each step.
    pub(super) fn copy(
        &mut self,
        source: &mut dyn Source,
        copy: &dyn Item,
        left: &mut u64,
        progress: &mut dyn FnMut(u64),
    ) -> Result<()> {
        let shown = || copy.shown();
        let mut offset = 0;
        loop {
            // Asked before the next data: what is appended in between counts as data.
            let size = source.size()?;
            let Some((start, end)) = source.next_data(offset)? else {
                // The file ends in a hole.
                return if offset < size {
                    copy.set_len(size).during(shown)
                } else {
                    Ok(())
                };
            };
            offset = start;
            while offset < end {
                let want = self.buffer.len().min(u64_as_usize(end - offset));
                let got = source.read(offset, &mut self.buffer[..want])?;
                if got == 0 {
                    // The file ends here, or was truncated while it was read.
                    return Ok(());
                }
                let n = usize_as_u64(got);
                *left = left.checked_sub(n).ok_or_else(too_much)?;
                copy.write(offset, &self.buffer[..got]).during(shown)?;
                offset += n;
                progress(n);
            }
        }
    }
}

/// Files of a sound image share no blocks, so together they fit the image.
fn too_much() -> Failure {
    Failure::new("the files hold more bytes than the whole image: some share blocks")
        .advise(DAMAGED)
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::MetadataExt;

    use super::super::host::Host;
    use super::*;
    use crate::tree::Tree;

    /// A file whose length may differ at each reading.
    struct Changing {
        /// The length that it claims.
        says: u64,
        /// Its true length at each call of `read`; the last one stays.
        has: Vec<u64>,
        /// Where its data ends, as `next_data` says.
        data: u64,
    }

    impl Source for Changing {
        fn next_data(&mut self, from: u64) -> Result<Option<(u64, u64)>> {
            Ok((from < self.data).then_some((from, self.data)))
        }

        fn read(&mut self, offset: u64, out: &mut [u8]) -> Result<usize> {
            let end = self.has[0];
            if self.has.len() > 1 {
                self.has.remove(0);
                // An append makes more data.
                self.data = self.data.max(self.has[0]);
            }
            let n = out.len().min(u64_as_usize(end.saturating_sub(offset)));
            out[..n].fill(7);
            Ok(n)
        }

        fn size(&self) -> Result<u64> {
            Ok(self.says.max(self.has[0]))
        }
    }

    /// Returns length and blocks of the copy, and what is left of 10,000,000 bytes.
    fn copied(mut source: Changing) -> Result<(u64, u64, u64)> {
        let lab = tempfile::tempdir().unwrap();
        let dir = Host.at(lab.path().as_os_str().as_bytes(), true)?.unwrap();
        let copy = dir.make_file(b"copy", 0o644)?;
        let mut left = 10_000_000;
        Copier::new().copy(&mut source, &*copy, &mut left, &mut |_| {})?;
        let meta = lab.path().join("copy").metadata().unwrap();
        Ok((meta.len(), meta.blocks(), left))
    }

    #[test]
    fn a_copy_is_as_long_as_what_was_read() {
        let source = |says, has: &[u64], data| Changing {
            says,
            has: has.to_vec(),
            data,
        };
        let len = |source| copied(source).map(|(len, ..)| len).unwrap();
        // A file of /proc claims length 0, one of /sys 4096.
        assert_eq!(len(source(0, &[3000], u64::MAX)), 3000);
        assert_eq!(len(source(4096, &[10], 4096)), 10);
        // A file that grows again and again, and one that is truncated.
        let mib = 1 << 20;
        assert_eq!(len(source(mib, &[mib, mib + 5, 3 * mib], mib)), 3 * mib);
        assert_eq!(len(source(3 * mib, &[3 * mib, 2 * mib], 3 * mib)), 2 * mib);
        // Nothing but a hole.
        assert_eq!(len(source(mib, &[0], 0)), mib);
        let (len, blocks, left) = copied(source(5 * mib, &[mib], mib)).unwrap();
        assert_eq!((len, left), (5 * mib, 10_000_000 - mib));
        assert!(blocks * 512 < 2 * mib, "{blocks} blocks");
    }

    #[test]
    fn no_more_is_copied_than_there_can_be() {
        let endless = Changing {
            says: 0,
            has: vec![u64::MAX],
            data: u64::MAX,
        };
        let refused = copied(endless).unwrap_err().to_string();
        assert!(
            refused.contains("more bytes than the whole image"),
            "{refused}"
        );
    }
}
