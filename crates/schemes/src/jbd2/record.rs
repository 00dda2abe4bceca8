//! A transaction as JBD2's records.
//!
//! In the log, a transaction is: revoke blocks, then descriptors each followed by the blocks that
//! it names, then the commit block.

use stetfs_format::checksum::crc32_be;
use stetfs_format::jbd2::{
    ChecksumVersion, CommitBlock, DescriptorWriter, JournalIncompat, JournalSuperblock, LogFormat,
    RevokeWriter, escape, needs_escape,
};
use stetfs_format::width::must_fit_u32;
use stetfs_format::{BlockNo, BlockSize, Tid, Time};
use stetfs_media::{Block, Cause, Class, Tag};

use stetfs_planted::{Bug, is_planted};
use stetfs_scheme::{LoggedBlock, Result};

/// The journal superblock and the bytes around its fields.
pub(super) struct Super {
    pub(super) fields: JournalSuperblock,
    raw: Block,
    /// The checksum version of the log while commits are not asynchronous.
    plain: ChecksumVersion,
}

impl Super {
    pub(super) fn decode(raw: Block) -> Result<Self> {
        let fields = JournalSuperblock::decode(raw.bytes(), BlockSize::of(raw.bytes().len()))?;
        let plain = fields.log_format().checksum;
        Ok(Self { fields, raw, plain })
    }

    /// Sets the features of the journal that belong to these features of the volume. Only while the
    /// log is empty.
    pub(super) fn set_features(&mut self, has_64bit: bool, has_metadata_csum: bool) {
        let fields = &mut self.fields;
        if !fields.is_v2 {
            (fields.is_v2, fields.nr_users) = (true, 1);
        }
        fields.feature_incompat.insert(JournalIncompat::REVOKE);
        fields
            .feature_incompat
            .set(JournalIncompat::IS_64BIT, has_64bit);
        fields
            .feature_incompat
            .remove(JournalIncompat::ASYNC_COMMIT);
        match (has_metadata_csum, fields.log_format().checksum) {
            (true, _) => fields.set_checksum_version(ChecksumVersion::V3),
            // A journal with v1 keeps it.
            (false, ChecksumVersion::V1) => {}
            (false, _) => fields.set_checksum_version(ChecksumVersion::None),
        }
        self.plain = fields.log_format().checksum;
    }

    /// Switches asynchronous commits on, or off: then the checksum version is that of
    /// [`set_features`](Self::set_features). Only while the log is empty.
    ///
    /// Asynchronous commits need checksum version 1, which puts a checksum of the whole transaction
    /// into the commit block. With versions 2 and 3 the kernel and e2fsck find a wrong block only
    /// when they replay it, and then refuse the whole journal.
    pub(super) fn set_async_commit(&mut self, on: bool) {
        self.fields
            .feature_incompat
            .set(JournalIncompat::ASYNC_COMMIT, on);
        self.fields
            .set_checksum_version(if on { ChecksumVersion::V1 } else { self.plain });
    }

    /// Returns the superblock of a log that begins at `start` (0: it is empty) with `sequence`.
    pub(super) fn update(&mut self, start: u32, sequence: Tid) -> &[u8] {
        (self.fields.start, self.fields.sequence) = (start, sequence);
        self.fields.head = if start == 0 { self.fields.first } else { 0 };
        self.fields.encode_into(self.raw.bytes_mut());
        self.raw.bytes()
    }
}

/// Makes the records of transactions.
pub(super) struct Records {
    format: LogFormat,
}

/// The records of a transaction's body, and copies of the blocks that had to be escaped.
pub(super) struct Body {
    revokes: Vec<Block>,
    descriptors: Vec<Block>,
    escaped: Vec<(usize, Block)>,
    tags_per_block: usize,
}

impl Records {
    pub(super) fn new(superblock: &Super) -> Self {
        Self {
            format: superblock.fields.log_format(),
        }
    }

    /// Returns the number of log blocks of a transaction, the commit block included.
    pub(super) fn log_blocks(&self, logged: usize, revoked: usize) -> u32 {
        let descriptors = logged.div_ceil(self.format.tags_per_block());
        let revokes = revoked.div_ceil(self.format.revokes_per_block());
        u32::try_from(logged + descriptors + revokes + 1).unwrap_or(u32::MAX)
    }

    pub(super) fn body(&self, tid: Tid, logged: &[&LoggedBlock], revoked: &[BlockNo]) -> Body {
        let format = &self.format;
        let revokes = revoked
            .chunks(format.revokes_per_block())
            .map(|chunk| {
                let mut block = Block::zeroed(format.block_size.bytes());
                let mut writer = RevokeWriter::new(block.bytes_mut(), tid, format);
                chunk.iter().for_each(|&b| writer.push(b));
                writer.finish();
                block
            })
            .collect();
        let mut escaped = Vec::new();
        let tags_per_block = format.tags_per_block();
        let mut descriptors = Vec::with_capacity(logged.len().div_ceil(tags_per_block));
        for (i, chunk) in logged.chunks(tags_per_block).enumerate() {
            let mut block = Block::zeroed(format.block_size.bytes());
            let mut writer = DescriptorWriter::new(block.bytes_mut(), tid, format);
            for (j, logged) in chunk.iter().enumerate() {
                if needs_escape(&logged.content) {
                    let mut copy = Block::copy_of(&logged.content);
                    escape(copy.bytes_mut());
                    let is_told = !is_planted(Bug::UntoldEscape);
                    writer.push(
                        logged.home,
                        is_told,
                        format.data_checksum(tid, copy.bytes()),
                    );
                    escaped.push((i * tags_per_block + j, copy));
                } else {
                    writer.push(
                        logged.home,
                        false,
                        format.data_checksum(tid, &logged.content),
                    );
                }
            }
            writer.finish();
            descriptors.push(block);
        }
        Body {
            revokes,
            descriptors,
            escaped,
            tags_per_block,
        }
    }

    /// Makes the commit block of a transaction whose log blocks are `parts`.
    pub(super) fn commit(
        &self,
        tid: Tid,
        time: (u64, u32),
        body: &Body,
        parts: &[(Tag, &[u8])],
    ) -> Block {
        let transaction_crc = (self.format.checksum == ChecksumVersion::V1).then(|| {
            let checked = &parts[body.revokes.len()..];
            checked
                .iter()
                .fold(!0, |crc, (_, bytes)| crc32_be(crc, bytes))
        });
        let time = Time {
            sec: time.0.cast_signed(),
            nsec: time.1,
        };
        let mut block = Block::zeroed(self.format.block_size.bytes());
        CommitBlock {
            tid,
            time,
            transaction_crc,
        }
        .encode(block.bytes_mut(), &self.format);
        block
    }
}

impl Body {
    /// Returns which of the transaction's log blocks has the `n`th logged block; `None` if that
    /// block was escaped.
    pub(super) fn place(&self, n: usize) -> Option<u32> {
        let is_escaped = self.escaped.iter().any(|(at, _)| *at == n);
        let place = self.revokes.len() + n / self.tags_per_block + 1 + n;
        (!is_escaped).then(|| must_fit_u32(place))
    }

    /// Returns the log blocks in order.
    pub(super) fn parts<'a>(&'a self, logged: &'a [&'a LoggedBlock]) -> Vec<(Tag, &'a [u8])> {
        let record = Tag::new(Class::Journal, Cause::Log);
        let records = self.revokes.len() + self.descriptors.len();
        let mut parts = Vec::with_capacity(records + logged.len() + 1);
        parts.extend(self.revokes.iter().map(|b| (record, b.bytes())));
        let mut escaped = self.escaped.iter().peekable();
        for (i, chunk) in logged.chunks(self.tags_per_block).enumerate() {
            parts.push((record, self.descriptors[i].bytes()));
            for (j, block) in chunk.iter().enumerate() {
                let n = i * self.tags_per_block + j;
                let bytes = match escaped.next_if(|(at, _)| *at == n) {
                    Some((_, copy)) => copy.bytes(),
                    None => &block.content,
                };
                parts.push((Tag::new(block.class, Cause::Log), bytes));
            }
        }
        parts
    }
}
