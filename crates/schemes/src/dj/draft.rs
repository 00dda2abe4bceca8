//! A transaction's draft: which of its blocks become deltas in the NVRAM, and which go to the
//! volume's journal.

use stetfs_format::delta_log::{DELTA_HEADER, Record, Tag as BlockTag, TagFlags, content_checksum};
use stetfs_format::jbd2::{escape, needs_escape};
use stetfs_format::width::{must_fit_u32, u64_as_usize, usize_as_u64};
use stetfs_media::{Block, BlockRef, Cause, Tag};

use crate::delta::{COMPRESSORS, Compressor, difference, is_former};
use crate::engine::log::{Head, Sorted};
use crate::parts::area::JournalArea;
use stetfs_scheme::{About, LoggedBlock, OptionAbout, Origin, Result, SchemeError, SchemeOptions};

pub(super) static THRESHOLD: OptionAbout = OptionAbout {
    name: "threshold",
    syntax: "PERCENT",
    default: "25",
    what: "how much of a block may differ, or be small, so that it is logged as a delta (scheme \
        dj)",
};

pub(super) static DECIDE: OptionAbout = OptionAbout {
    name: "decide",
    syntax: "level|size",
    default: "level",
    what: "whether that is the share of the bits that differ, or the size of the compressed delta",
};

pub(super) static COMPRESS: OptionAbout = OptionAbout {
    name: "compress",
    syntax: "lzo|ranges",
    default: "lzo",
    what: "how deltas are made small",
};

/// The rule for which blocks become deltas: the paper's section III.C.
pub(super) struct Rule {
    /// Percent.
    threshold: u64,
    by_size: bool,
    with: &'static dyn Compressor,
}

impl Rule {
    pub(super) fn of(about: &'static About, options: &SchemeOptions) -> Result<Self> {
        let name = options.value(&COMPRESS);
        let with = COMPRESSORS.into_iter().find(|with| with.name() == name);
        let unknown = || {
            if is_former(name) {
                SchemeError::Option {
                    scheme: about.name,
                    why: format!(
                        "compress={name}: lzo|ranges; {name} is in `stetfs lab dj-fig4` alone"
                    ),
                }
            } else {
                options.wrong(about, &COMPRESS)
            }
        };
        Ok(Self {
            threshold: options.percent(about, &THRESHOLD)?,
            by_size: match options.value(&DECIDE) {
                "level" => false,
                "size" => true,
                _ => return Err(options.wrong(about, &DECIDE)),
            },
            with: with.ok_or_else(unknown)?,
        })
    }

    /// Returns true when a block becomes a delta, and leaves it in `delta`; `xor` is scratch.
    fn makes_delta(&self, block: &LoggedBlock, xor: &mut Vec<u8>, delta: &mut Vec<u8>) -> bool {
        let Some(base) = block
            .base
            .as_ref()
            .filter(|_| block.origin != Origin::Fresh)
        else {
            return false;
        };
        let size = block.content.len();
        xor.resize(size, 0);
        let differ = difference(base, &block.content, xor) * 100;
        let all = usize_as_u64(size) * 8;
        let few = self.threshold * all;
        if !self.by_size && differ >= few && all * 100 - differ >= few {
            return false;
        }
        self.with.compress(xor, delta);
        let most = if self.by_size {
            size * u64_as_usize(self.threshold) / 100
        } else {
            size - 1
        };
        delta.len() + DELTA_HEADER <= most
    }
}

/// The places where a transaction goes.
pub(super) struct Place {
    /// Its place in the ring.
    pub(super) head: Head,
    /// The first block of the journal that it may use.
    pub(super) first: u32,
}

/// A transaction's draft, in buffers that the next one reuses.
#[derive(Default)]
pub(super) struct Draft {
    pub(super) record: Record,
    /// The tags in the order of the record, those of freed blocks last.
    pub(super) tags: Vec<BlockTag>,
    /// The blocks that go to the journal.
    pub(super) wholes: Vec<(BlockRef, Tag)>,
    xor: Vec<u8>,
    delta: Vec<u8>,
}

impl Draft {
    /// Begins a new draft, with descriptor, tags and deltas of these blocks.
    pub(super) fn describe(
        &mut self,
        place: &Place,
        rule: &Rule,
        area: &JournalArea,
        sorted: &Sorted<'_>,
    ) {
        let Sorted {
            logged, revoked, ..
        } = sorted;
        let count = logged.len() + revoked.len();
        // Tags have 32 bits for the place of a delta.
        let room = place.head.room.min(u64::from(u32::MAX));
        self.record.begin(place.head.sequence, count);
        self.tags.clear();
        self.wholes.clear();
        for block in logged {
            let is_delta = rule.makes_delta(block, &mut self.xor, &mut self.delta);
            let length = DELTA_HEADER + self.delta.len();
            let deltas = self.record.0.len() - Record::tag_at(count) + length;
            let tag = if is_delta && Record::length(count, deltas) <= room {
                let flags = TagFlags::from_bits_retain(u16::from(rule.with.number()) << 8);
                self.log_delta(block, flags)
            } else {
                self.log_whole(
                    block,
                    area.step(place.first, must_fit_u32(self.wholes.len())),
                )
            };
            self.tags.push(tag);
        }
        self.tags.extend(revoked.iter().map(|block| BlockTag {
            home: *block,
            flags: TagFlags::REVOKE,
            place: 0,
            length: 0,
        }));
        for (n, tag) in self.tags.iter().enumerate() {
            self.record.set_tag(n, tag);
        }
    }

    fn log_delta(&mut self, block: &LoggedBlock, flags: TagFlags) -> BlockTag {
        let bytes = &mut self.record.0;
        let place = bytes.len();
        bytes.extend(content_checksum(&block.content).to_le_bytes());
        bytes.extend_from_slice(&self.delta);
        BlockTag {
            home: block.home,
            flags,
            place: must_fit_u32(place),
            length: must_fit_u32(bytes.len() - place),
        }
    }

    fn log_whole(&mut self, block: &LoggedBlock, place: u32) -> BlockTag {
        let mut flags = TagFlags::NON_DELTA;
        let mut content = block.content.clone();
        if needs_escape(&content) {
            flags |= TagFlags::ESCAPE;
            let mut copy = Block::copy_of(&content);
            escape(copy.bytes_mut());
            content = copy.into();
        }
        self.wholes
            .push((content, Tag::new(block.class, Cause::Log)));
        BlockTag {
            home: block.home,
            flags,
            place,
            length: content_checksum(&block.content),
        }
    }
}
