//! Where the journal lies: the journal inode's map, read straight from the device.
//!
//! Nothing here goes through the journal, because the journal is not open yet. Every record on the
//! way is checked as in operation: superblock, descriptor, inode, extent nodes or pointer blocks.
//! The kernel does the same in `ext4_get_journal_inode` and `jbd2_journal_init_inode`.

use stetfs_format::extent::{Expected, ExtentNode};
use stetfs_format::inode::InodeFlags;
use stetfs_format::jbd2::JournalSuperblock;
use stetfs_format::nvm_pair::VolumeRecord;
use stetfs_format::private_log::LogHeader;
use stetfs_format::{
    BlockNo, Corrupt, FeatureIncompat, GroupDesc, Inode, InodeNo, Place, Superblock, Tid,
};
use stetfs_media::pmem::LINE;
use stetfs_media::{Block, BlockDev, Cause, Class, Tag};
use stetfs_scheme::LogExtent;

use super::error::MountError;
use crate::error::Result;
use crate::types::mode;

/// The longest journal that mke2fs makes (mke2fs(8), `-J size=`), in blocks.
const BLOCKS_MAX: u32 = 10_240_000;

/// Returns the runs of the journal's blocks, in order.
///
/// # Errors
/// [`MountError::ExternalJournal`], [`MountError::JournalInode`], or damage in a record.
pub fn journal_extents(dev: &dyn BlockDev, sb: &Superblock) -> Result<Vec<LogExtent>> {
    if sb.journal_inum == 0 {
        return Err(MountError::ExternalJournal {
            device: sb.journal_dev,
        }
        .into());
    }
    let reader = Reader { dev, sb };
    let ino = InodeNo(sb.journal_inum);
    let bad = |why| MountError::JournalInode { ino, why };
    let inode = reader.inode(ino)?;
    if inode.links_count == 0 || !mode::is_reg(inode.mode) {
        return Err(bad("is not a regular file in use").into());
    }
    // Pointer blocks can name each other, so only the size bounds the walk.
    let blocks = u32::try_from(sb.block.block_of(inode.size))
        .ok()
        .filter(|&blocks| blocks <= BLOCKS_MAX && u64::from(blocks) <= sb.blocks_count)
        .ok_or(bad("is too long"))?;
    let mut log = Log {
        extents: Vec::new(),
        next: 0,
        blocks,
    };
    if inode.flags.contains(InodeFlags::EXTENTS) {
        let root = ExtentNode::root(&inode.block, sb).map_err(|e| e.at(Place::Inode(ino)))?;
        reader.extents(root, inode.csum_seed(ino, sb), ino, &mut log)?;
    } else {
        reader.pointers(&inode, ino, &mut log)?;
    }
    if log.next < blocks {
        return Err(bad("has a hole").into());
    }
    Ok(log.extents)
}

/// Whether the log holds transactions although the superblock does not ask for recovery. They must
/// not be replayed: another program may have recovered the volume and left the log as it was.
///
/// # Errors
/// Damage in the journal's superblock; an error of reading.
pub(super) fn holds_leftovers(
    dev: &dyn BlockDev,
    sb: &Superblock,
    log: &[LogExtent],
) -> Result<bool> {
    Ok(read_head(dev, sb, log)?.is_some_and(|(_, head)| head.start != 0))
}

/// Returns the scheme of a private log; `None` when its header is damaged or missing.
///
/// # Errors
/// An error of reading.
pub fn private_log_owner(
    dev: &dyn BlockDev,
    sb: &Superblock,
    log: &[LogExtent],
) -> Result<Option<String>> {
    let Some(raw) = owner_block(dev, sb, log)? else {
        return Ok(None);
    };
    if let Ok(record) = VolumeRecord::newest(raw.bytes()) {
        return Ok(Some(record.scheme));
    }
    let header = LogHeader::decode(raw.bytes());
    Ok(header.ok().map(|header| header.scheme))
}

/// Whether the private log was written in cache lines. Then it can only be continued with the
/// volume in memory. The superblock must have the mark of a private log.
///
/// # Errors
/// An error of reading.
pub(crate) fn is_log_in_lines(
    dev: &dyn BlockDev,
    sb: &Superblock,
    log: &[LogExtent],
) -> Result<bool> {
    let Some(raw) = owner_block(dev, sb, log)? else {
        return Ok(false);
    };
    let header = LogHeader::decode(raw.bytes());
    Ok(header.is_ok_and(|header| u64::from(header.unit) == LINE))
}

/// Returns what the volume records of the memory beside it; `None` when it has no such memory, or
/// the record is damaged. The superblock must have the mark of a private log.
///
/// # Errors
/// An error of reading.
pub fn memory_record(
    dev: &dyn BlockDev,
    sb: &Superblock,
    log: &[LogExtent],
) -> Result<Option<VolumeRecord>> {
    let raw = owner_block(dev, sb, log)?;
    let record = raw.and_then(|raw| VolumeRecord::newest(raw.bytes()).ok());
    Ok(record.filter(|record| record.uuid == sb.uuid))
}

/// Returns the block of the log that names its scheme; `None` when the log is too short.
fn owner_block(dev: &dyn BlockDev, sb: &Superblock, log: &[LogExtent]) -> Result<Option<Block>> {
    let mut blocks = log
        .iter()
        .flat_map(|e| (0..u64::from(e.len)).map(|i| e.start.plus(i)));
    let Some(block) = blocks.nth(1) else {
        return Ok(None);
    };
    let mut raw = Block::zeroed(sb.block_size());
    let at = sb.block.start_of(block);
    dev.read_at(at, raw.bytes_mut(), Tag::read(Class::Journal))?;
    Ok(Some(raw))
}

/// Marks the log empty (`jbd2_journal_wipe`). The sequence number grows by the length of the log in
/// blocks, so that no old transaction in it can be taken for a later one.
///
/// # Errors
/// As [`holds_leftovers`]; an error of writing.
pub(super) fn wipe(dev: &dyn BlockDev, sb: &Superblock, log: &[LogExtent]) -> Result<()> {
    let Some((mut raw, mut head)) = read_head(dev, sb, log)? else {
        return Ok(());
    };
    let next = Tid(head.sequence.0.wrapping_add(head.maxlen));
    empty(dev, sb, log, &mut raw, &mut head, next)
}

/// Marks the log empty; the next transaction has this number.
///
/// # Errors
/// As [`holds_leftovers`]; writing.
pub(super) fn set_empty(
    dev: &dyn BlockDev,
    sb: &Superblock,
    log: &[LogExtent],
    next: Tid,
) -> Result<()> {
    let Some((mut raw, mut head)) = read_head(dev, sb, log)? else {
        return Ok(());
    };
    empty(dev, sb, log, &mut raw, &mut head, next)
}

fn empty(
    dev: &dyn BlockDev,
    sb: &Superblock,
    log: &[LogExtent],
    raw: &mut Block,
    head: &mut JournalSuperblock,
    next: Tid,
) -> Result<()> {
    head.sequence = next;
    (head.start, head.head) = (0, head.first);
    head.encode_into(raw.bytes_mut());
    let at = sb.block.start_of(log[0].start);
    dev.write_at(at, raw.bytes(), Tag::new(Class::Journal, Cause::Control))?;
    dev.flush(Cause::Control)?;
    Ok(())
}

fn read_head(
    dev: &dyn BlockDev,
    sb: &Superblock,
    log: &[LogExtent],
) -> Result<Option<(Block, JournalSuperblock)>> {
    let Some(first) = log.first() else {
        return Ok(None);
    };
    let mut raw = Block::zeroed(sb.block_size());
    let at = sb.block.start_of(first.start);
    dev.read_at(at, raw.bytes_mut(), Tag::read(Class::Journal))?;
    let head =
        JournalSuperblock::decode(raw.bytes(), sb.block).map_err(|e| e.at(Place::Journal(0)))?;
    Ok(Some((raw, head)))
}

/// The runs found so far. The journal may have no holes, so they come in order.
struct Log {
    extents: Vec<LogExtent>,
    /// The logical block that must come next.
    next: u32,
    /// The length of the journal in blocks; runs behind it are left out.
    blocks: u32,
}

impl Log {
    fn push(&mut self, lblk: u32, start: BlockNo, len: u32) -> bool {
        if self.next >= self.blocks {
            return true;
        }
        if lblk != self.next {
            return false;
        }
        let len = len.min(self.blocks - self.next);
        self.next += len;
        match self.extents.last_mut() {
            Some(last) if last.start.plus(last.len.into()) == start => last.len += len,
            _ => self.extents.push(LogExtent { start, len }),
        }
        true
    }
}

struct Reader<'a> {
    dev: &'a dyn BlockDev,
    sb: &'a Superblock,
}

impl Reader<'_> {
    fn block(&self, block: BlockNo, class: Class) -> Result<Block> {
        let mut content = Block::zeroed(self.sb.block_size());
        self.dev.read_at(
            self.sb.block.start_of(block),
            content.bytes_mut(),
            Tag::read(class),
        )?;
        Ok(content)
    }

    fn inode(&self, ino: InodeNo) -> Result<Inode> {
        if !self.sb.is_valid_inode(ino) {
            return Err(Corrupt::InodeNumber(ino).into());
        }
        let (group, index) = self.sb.group_of_inode(ino);
        let (block, at) = self.sb.desc_position(group);
        let raw = self.block(block, Class::GroupDesc)?;
        let raw = &raw.bytes()[at..at + self.sb.desc_size()];
        let private = self
            .sb
            .feature_incompat
            .contains(FeatureIncompat::PRIVATE_LOG);
        let desc = match GroupDesc::decode(raw, group, self.sb) {
            // Its private log is not found yet, and will repair the descriptor.
            Err(_) if private => GroupDesc::decode_torn(raw, group, self.sb)?,
            decoded => decoded?,
        };
        let (block, at) = self.sb.inode_position(index);
        let raw = self.block(desc.inode_table.plus(block.into()), Class::InodeTable)?;
        Ok(Inode::decode(
            &raw.bytes()[at..at + self.sb.inode_size()],
            ino,
            self.sb,
        )?)
    }

    /// Walks an extent node; each level down is one level less deep, so the walk ends.
    fn extents(&self, node: ExtentNode<'_>, seed: u32, ino: InodeNo, log: &mut Log) -> Result<()> {
        let place = |e: Corrupt| e.at(Place::Inode(ino));
        if node.is_leaf() {
            for extent in node.extents() {
                let e = extent.map_err(place)?;
                if e.unwritten || !log.push(e.lblk.0, e.pblk, e.len.into()) {
                    return Err(MountError::JournalInode {
                        ino,
                        why: "has a hole",
                    }
                    .into());
                }
            }
            return Ok(());
        }
        for index in node.indexes() {
            let index = index.map_err(place)?;
            let block = self.block(index.pblk, Class::Mapping)?;
            let expected = Expected {
                depth: node.depth() - 1,
                lblk: index.lblk,
            };
            let child = ExtentNode::decode(block.bytes(), expected, seed, self.sb)
                .map_err(|e| e.at(Place::InodeBlock(ino, index.pblk)))?;
            self.extents(child, seed, ino, log)?;
        }
        Ok(())
    }

    /// Walks the block pointers of an ext3 inode: 12 direct, then one, two and three levels.
    fn pointers(&self, inode: &Inode, ino: InodeNo, log: &mut Log) -> Result<()> {
        for i in 0..15 {
            let block = BlockNo(
                u32::from_le_bytes(
                    inode.block[4 * i..4 * i + 4]
                        .try_into()
                        .expect("four bytes"),
                )
                .into(),
            );
            self.pointer(block, i.saturating_sub(11), ino, log)?;
        }
        Ok(())
    }

    fn pointer(&self, block: BlockNo, level: usize, ino: InodeNo, log: &mut Log) -> Result<()> {
        if log.next >= log.blocks {
            return Ok(());
        }
        if !self.sb.is_valid_range(block, 1) {
            let why = if block.0 == 0 {
                "has a hole"
            } else {
                "has a block outside the volume"
            };
            return Err(MountError::JournalInode { ino, why }.into());
        }
        if level == 0 {
            log.push(log.next, block, 1);
            return Ok(());
        }
        let raw = self.block(block, Class::Mapping)?;
        for pointer in raw.bytes().as_chunks::<4>().0 {
            self.pointer(
                BlockNo(u32::from_le_bytes(*pointer).into()),
                level - 1,
                ino,
                log,
            )?;
        }
        Ok(())
    }
}
