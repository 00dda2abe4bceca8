//! What is compressed, or comes through a pipe, as a file that can be read anywhere: unpacked into
//! a file without a name.

use std::fmt::Display;
use std::fs::File;
use std::io::{self, BufRead, BufReader, ErrorKind, IsTerminal, Read, Seek, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use flate2::bufread::MultiGzDecoder;
use lzma_rust2::XzReader;
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};
use stetfs_format::width::{u64_as_usize, usize_as_u64};

use crate::failure::{Explain, Failure, Result};
use crate::progress;

/// Bytes that are read, or unpacked, at once.
pub(super) const CHUNK: usize = 1 << 18;
/// Bytes by which compressed data is recognised.
const HEAD: u64 = 6;
/// The most memory that unpacking by xz may take, in KiB: what `xz -9` needs, fifteen times.
const XZ_MEMORY_KIB: u32 = 1 << 20;

/// How data is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Packing {
    Gzip,
    Xz,
    Zstd,
    /// Known by its name only.
    Bzip2,
}

impl Packing {
    /// Recognises it by the first bytes. Sources: RFC 1952, 2.3.1; the .xz file format 1.2.1,
    /// 2.1.1.1; RFC 8878, 3.1.1 and 3.1.2.
    fn of(head: &[u8]) -> Option<Self> {
        match head {
            [0x1f, 0x8b, 8, ..] => Some(Self::Gzip),
            [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => Some(Self::Xz),
            [0x28, 0xb5, 0x2f, 0xfd, ..] | [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => Some(Self::Zstd),
            [b'B', b'Z', b'h', b'1'..=b'9', ..] => Some(Self::Bzip2),
            _ => None,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Gzip => "gzip",
            Self::Xz => "xz",
            Self::Zstd => "zstd",
            Self::Bzip2 => "bzip2",
        }
    }

    fn reader<'a>(self, from: impl BufRead + 'a) -> Result<Box<dyn Read + 'a>> {
        Ok(match self {
            Self::Gzip => Box::new(MultiGzDecoder::new(from)),
            Self::Xz => Box::new(XzReader::new_mem_limit(from, true, XZ_MEMORY_KIB)),
            Self::Zstd => Box::new(Frames::of(from)),
            Self::Bzip2 => {
                return Err(
                    Failure::new("is compressed by bzip2, which is not known here")
                        .advise("unpack it first: bunzip2"),
                );
            }
        })
    }
}

/// Where files without names are made.
#[derive(Clone, Debug)]
pub(crate) struct Spool {
    dir: PathBuf,
    /// No progress is shown.
    quiet: bool,
}

impl Spool {
    /// For what goes into an image: in the image's directory, which will need the same room. For a
    /// device it is that for temporary files.
    pub(crate) fn beside(image: &Path, quiet: bool) -> Self {
        let is_file = image.metadata().is_ok_and(|meta| meta.is_file());
        let dir = if image.exists() && !is_file {
            std::env::temp_dir()
        } else {
            match image.parent() {
                Some(dir) if !dir.as_os_str().is_empty() => dir.to_owned(),
                _ => PathBuf::from("."),
            }
        };
        Self { dir, quiet }
    }

    /// Opens a file, or the standard input (`-`), as one that can be read anywhere.
    pub(super) fn open(&self, path: &Path) -> Result<File> {
        let mut file = if path.as_os_str() == "-" {
            if io::stdin().is_terminal() {
                return Err(Failure::new("is a terminal, which has no archive")
                    .advise("name the archive, or send it through a pipe")
                    .exit(2));
            }
            File::from(io::stdin().as_fd().try_clone_to_owned()?)
        } else {
            File::open(path)?
        };
        let kind = file.metadata()?.file_type();
        let is_file = kind.is_file() && file.stream_position()? == 0;
        if !is_file {
            return self.unpacked(file, None, path.display());
        }
        let mut head = Vec::new();
        (&file).take(HEAD).read_to_end(&mut head)?;
        file.rewind()?;
        if Packing::of(&head).is_none() {
            return Ok(file);
        }
        let len = file.metadata()?.len();
        self.unpacked(file, Some(len), path.display())
    }

    /// Unpacks what is read, or copies it if it is not compressed. `len` is how many bytes come, if
    /// that is known.
    pub(super) fn unpacked(
        &self,
        from: impl Read,
        len: Option<u64>,
        what: impl Display,
    ) -> Result<File> {
        let form = len.map_or(progress::BYTES, |_| progress::BYTES_OF);
        let bar = progress::bar(form, len, self.quiet);
        bar.set_message(format!("reading {what}"));
        let mut from = BufReader::with_capacity(CHUNK, bar.wrap_read(from));
        let mut head = Vec::new();
        from.by_ref().take(HEAD).read_to_end(&mut head)?;
        let packing = Packing::of(&head);
        let mut from = head.chain(from);
        let file = match packing {
            None => self.keep(&mut from),
            Some(packing) => self.keep(&mut packing.reader(from)?).map_err(|e| {
                let name = packing.name();
                e.context(format!("compressed by {name}"))
            }),
        };
        bar.finish_and_clear();
        file
    }

    fn keep(&self, from: &mut dyn Read) -> Result<File> {
        let in_dir = || format!("unpacking it into {}", self.dir.display());
        let mut file = tempfile::tempfile_in(&self.dir).during(in_dir)?;
        let mut chunk = vec![0; CHUNK];
        loop {
            match from.read(&mut chunk) {
                Ok(0) => return Ok(file),
                Ok(n) => file.write_all(&chunk[..n]).during(in_dir)?,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e.into()),
            }
        }
    }
}

/// What the frames of Zstandard hold, one behind the other. Some hold nothing of it: those that
/// zstd:chunked layers have for their tables are passed over.
struct Frames<R> {
    from: R,
    decoder: FrameDecoder,
    is_within: bool,
}

impl<R: BufRead> Frames<R> {
    fn of(from: R) -> Self {
        Self {
            from,
            decoder: FrameDecoder::new(),
            is_within: false,
        }
    }

    /// Begins the next frame; returns false at the end.
    fn begin(&mut self) -> io::Result<bool> {
        while !self.from.fill_buf()?.is_empty() {
            match self.decoder.reset(&mut self.from) {
                Ok(()) => return Ok(true),
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame {
                    length,
                    ..
                })) => self.pass(length.into())?,
                Err(e) => return Err(io::Error::other(e)),
            }
        }
        Ok(false)
    }

    fn pass(&mut self, mut left: u64) -> io::Result<()> {
        while left > 0 {
            let here = self.from.fill_buf()?.len();
            if here == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
            let here = here.min(u64_as_usize(left));
            self.from.consume(here);
            left -= usize_as_u64(here);
        }
        Ok(())
    }

    /// Fails if the frame that has ended is not what was packed.
    fn check(&self) -> io::Result<()> {
        match self.decoder.get_checksum_from_data() {
            Some(sum) if self.decoder.get_calculated_checksum() != Some(sum) => {
                Err(io::Error::other("its checksum is wrong"))
            }
            _ => Ok(()),
        }
    }
}

impl<R: BufRead> Read for Frames<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        loop {
            if !self.is_within {
                if !self.begin()? {
                    return Ok(0);
                }
                self.is_within = true;
            }
            if self.decoder.can_collect() > 0 {
                return self.decoder.read(out);
            }
            if self.decoder.is_finished() {
                self.check()?;
                self.is_within = false;
                continue;
            }
            let some = BlockDecodingStrategy::UptoBytes(CHUNK);
            let decoded = self.decoder.decode_blocks(&mut self.from, some);
            decoded.map_err(io::Error::other)?;
        }
    }
}
