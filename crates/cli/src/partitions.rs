//! Partition tables of disks: GPT and MBR, as the kernel reads them. Whatever a table says, it is
//! read in bounded time and memory.
//!
//! Sources: UEFI Specification 2.10, chapter 5 (GPT); `block/partitions/msdos.c` and `efi.c` of
//! Linux (numbers, extended partitions, what makes a table valid).

use crc_fast::{CrcAlgorithm, checksum};
use stetfs_format::width::u64_as_usize;

use crate::failure::Result;
use crate::shown::shown;

/// Reads at an offset; what lies behind the end is zeros.
pub(crate) type Read<'a> = &'a dyn Fn(u64, &mut [u8]) -> Result<()>;

/// A partition table.
pub(crate) struct Table {
    /// GPT or MBR.
    pub(crate) kind: &'static str,
    /// False if the checksums of a GPT and of its copy are wrong: it can be shown, not relied on.
    pub(crate) is_sound: bool,
    /// In the order of the table.
    pub(crate) entries: Vec<Entry>,
}

pub(crate) struct Entry {
    /// From 1 on, as the kernel counts them.
    pub(crate) number: u32,
    /// Bytes from the beginning.
    pub(crate) offset: u64,
    /// Bytes.
    pub(crate) size: u64,
    /// Its type in words, and its name if it has one.
    pub(crate) words: String,
}

/// Entries of a GPT that are read at most; a table usually has 128.
const ENTRIES_MAX: u32 = 256;
/// Bytes of an entry at most; it usually has 128.
const ENTRY_MAX: u32 = 4096;
/// Logical partitions that are read at most; the kernel takes no more of a disk either.
const LOGICAL_MAX: u32 = 256;

/// Returns the table of a disk of `size` bytes; None if there is none.
pub(crate) fn table(size: u64, read: Read<'_>) -> Result<Option<Table>> {
    match gpt(size, read)? {
        Some(table) => Ok(Some(table)),
        None => mbr(size, read),
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes[at..]
        .first_chunk()
        .map_or(0, |raw| u32::from_le_bytes(*raw))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes[at..]
        .first_chunk()
        .map_or(0, |raw| u64::from_le_bytes(*raw))
}

/// Looks for a GPT, whose sectors have 512 or 4096 bytes: in the second sector, or, if that header
/// is damaged, in the last one.
fn gpt(size: u64, read: Read<'_>) -> Result<Option<Table>> {
    let mut damaged = None;
    for sector in [512, 4096] {
        let Some(last) = (size / sector).checked_sub(1) else {
            continue;
        };
        for lba in [1, last] {
            let table = gpt_at(lba, sector, size, read)?;
            if table.as_ref().is_some_and(|table| table.is_sound) {
                return Ok(table);
            }
            damaged = damaged.or(table);
        }
    }
    Ok(damaged)
}

/// Reads a GPT whose header is in sector `lba`.
///
/// The header is valid if and only if: 1. it has the signature; 2. its length is between 92 bytes
/// and a sector; 3. its checksum is right; 4. it says that it is in this sector; 5. the checksum of
/// the entries is right.
fn gpt_at(lba: u64, sector: u64, size: u64, read: Read<'_>) -> Result<Option<Table>> {
    let mut header = vec![0; u64_as_usize(sector)];
    read(lba.saturating_mul(sector), &mut header)?;
    if !header.starts_with(b"EFI PART") {
        return Ok(None);
    }
    let (count, step) = (u32_at(&header, 80), u32_at(&header, 84));
    let entries_at = u64_at(&header, 72).checked_mul(sector);
    let entries_at = entries_at.filter(|at| *at < size);
    let is_usual = count <= ENTRIES_MAX && (128..=ENTRY_MAX).contains(&step);
    let (Some(entries_at), true) = (entries_at, is_usual) else {
        let table = Table {
            kind: "GPT",
            is_sound: false,
            entries: Vec::new(),
        };
        return Ok(Some(table));
    };
    let step = u64_as_usize(step.into());
    let mut raw = vec![0; u64_as_usize(count.into()) * step];
    read(entries_at, &mut raw)?;
    let len = u64_as_usize(u32_at(&header, 12).into());
    let is_sound = (92..=header.len()).contains(&len)
        && u64_at(&header, 24) == lba
        && crc32(&raw) == u32_at(&header, 88)
        && {
            let stored = u32_at(&header, 16);
            header[16..20].fill(0);
            crc32(&header[..len]) == stored
        };
    let entries = (1..).zip(raw.chunks_exact(step));
    Ok(Some(Table {
        kind: "GPT",
        is_sound,
        entries: entries
            .filter_map(|(number, raw)| gpt_entry(number, raw, sector))
            .collect(),
    }))
}

fn crc32(bytes: &[u8]) -> u32 {
    let sum = checksum(CrcAlgorithm::Crc32IsoHdlc, bytes);
    u32::try_from(sum).unwrap_or_default()
}

fn gpt_entry(number: u32, raw: &[u8], sector: u64) -> Option<Entry> {
    let (first, last) = (u64_at(raw, 32), u64_at(raw, 40));
    if raw[..16] == [0; 16] || last < first {
        return None;
    }
    let name: Vec<u16> = raw[56..128]
        .chunks_exact(2)
        .map(|pair| u16::from_le_bytes([pair[0], pair[1]]))
        .take_while(|unit| *unit != 0)
        .collect();
    let name = String::from_utf16_lossy(&name);
    let kind = gpt_kind(raw);
    Some(Entry {
        number,
        offset: first.saturating_mul(sector),
        size: (last - first).saturating_add(1).saturating_mul(sector),
        words: match name.as_str() {
            "" => kind,
            name => format!("{kind}, \"{}\"", shown(name.as_bytes())),
        },
    })
}

/// Returns the type of a partition in words. In a GUID, the first three fields are little-endian.
fn gpt_kind(raw: &[u8]) -> String {
    const KINDS: [(&str, &str); 12] = [
        ("0FC63DAF-8483-4772-8E79-3D69D8477DE4", "Linux"),
        ("C12A7328-F81F-11D2-BA4B-00A0C93EC93B", "EFI system"),
        ("21686148-6449-6E6F-744E-656564454649", "BIOS boot"),
        ("0657FD6D-A4AB-43C4-84E5-0933C84B4F4F", "Linux swap"),
        ("E6D6D379-F507-44C2-A23C-237F2A3DF928", "Linux LVM"),
        ("A19D880F-05FC-4D3B-A006-743F0F84911E", "Linux RAID"),
        (
            "4F68BCE3-E8CD-4DB1-96E7-FBCAF984B709",
            "Linux root (x86-64)",
        ),
        (
            "B921B045-1DF0-41C3-AF44-4C6F280D3FAE",
            "Linux root (ARM-64)",
        ),
        ("BC13C2FF-59E6-4262-A352-B275FD6F7172", "Linux boot"),
        ("933AC7E1-2EB4-4F13-B844-0E14E2AEF915", "Linux home"),
        ("EBD0A0A2-B9E5-4433-87C0-68B6B72699C7", "Microsoft data"),
        ("E3C9E316-0B5C-4DB8-817D-F92DF00215AE", "Microsoft reserved"),
    ];
    let order = [3, 2, 1, 0, 5, 4, 7, 6, 8, 9, 10, 11, 12, 13, 14, 15];
    let mut guid = String::new();
    for (n, at) in order.into_iter().enumerate() {
        if matches!(n, 4 | 6 | 8 | 10) {
            guid.push('-');
        }
        guid.push_str(&format!("{:02X}", raw[at]));
    }
    let known = KINDS.iter().find(|(known, _)| *known == guid);
    known.map_or_else(|| format!("type {guid}"), |(_, words)| (*words).to_owned())
}

/// Bytes of a sector in an MBR, whatever the disk has.
const MBR_SECTOR: u64 = 512;
/// Where the four entries of an MBR begin.
const MBR_ENTRIES: usize = 446;

/// An entry of an MBR: type, first sector, sectors.
struct MbrEntry {
    kind: u8,
    first: u64,
    count: u64,
}

impl MbrEntry {
    fn is_extended(&self) -> bool {
        matches!(self.kind, 0x05 | 0x0f | 0x85)
    }
}

/// Returns the entries of the MBR in a sector; None if the sector is none.
fn mbr_entries(at: u64, read: Read<'_>) -> Result<Option<Vec<MbrEntry>>> {
    let mut raw = vec![0; u64_as_usize(MBR_SECTOR)];
    read(at, &mut raw)?;
    let is_table = raw.ends_with(b"\x55\xaa");
    let entries = raw[MBR_ENTRIES..510].chunks_exact(16);
    if !is_table || entries.clone().any(|entry| entry[0] & 0x7f != 0) {
        return Ok(None);
    }
    let decoded = entries.map(|entry| MbrEntry {
        kind: entry[4],
        first: u32_at(entry, 8).into(),
        count: u32_at(entry, 12).into(),
    });
    Ok(Some(decoded.collect()))
}

/// Looks for an MBR.
fn mbr(size: u64, read: Read<'_>) -> Result<Option<Table>> {
    let Some(primary) = mbr_entries(0, read)? else {
        return Ok(None);
    };
    if primary
        .iter()
        .any(|entry| entry.kind != 0 && entry.first * MBR_SECTOR >= size)
    {
        // The boot sector of something else.
        return Ok(None);
    }
    let mut entries = Vec::new();
    for (number, entry) in (1..).zip(&primary) {
        if entry.kind != 0 && entry.count != 0 {
            entries.push(mbr_entry(number, entry, entry.first));
        }
    }
    if let Some(extended) = primary.iter().find(|entry| entry.is_extended()) {
        logical(extended, size, read, &mut entries)?;
    }
    Ok((!entries.is_empty()).then_some(Table {
        kind: "MBR",
        is_sound: true,
        entries,
    }))
}

/// Reads the chain of tables in an extended partition. In each, the first entry is a logical
/// partition, counted from this table, and the second one the next table, counted from the extended
/// partition.
fn logical(extended: &MbrEntry, size: u64, read: Read<'_>, entries: &mut Vec<Entry>) -> Result<()> {
    let mut at = extended.first;
    for number in 5..5 + LOGICAL_MAX {
        if at * MBR_SECTOR >= size {
            return Ok(());
        }
        let Some(table) = mbr_entries(at * MBR_SECTOR, read)? else {
            return Ok(());
        };
        let is_one = |entry: &&MbrEntry| entry.kind != 0 && entry.count != 0;
        let Some(entry) = table[..1].iter().find(is_one).filter(|e| !e.is_extended()) else {
            return Ok(());
        };
        entries.push(mbr_entry(number, entry, at + entry.first));
        let next = table[1..2].iter().find(is_one);
        match next.filter(|e| e.is_extended()) {
            // A chain that leads back does not end.
            Some(next) if extended.first + next.first > at => at = extended.first + next.first,
            _ => return Ok(()),
        }
    }
    Ok(())
}

fn mbr_entry(number: u32, entry: &MbrEntry, first: u64) -> Entry {
    let words = match entry.kind {
        0x01 | 0x04 | 0x06 | 0x0e => "FAT",
        0x05 | 0x0f | 0x85 => "extended",
        0x07 => "NTFS or exFAT",
        0x0b | 0x0c => "FAT32",
        0x82 => "Linux swap",
        0x83 => "Linux",
        0x8e => "Linux LVM",
        0xee => "the place of a GPT",
        0xef => "EFI system",
        0xfd => "Linux RAID",
        _ => "",
    };
    Entry {
        number,
        offset: first * MBR_SECTOR,
        size: entry.count * MBR_SECTOR,
        words: match words {
            "" => format!("type 0x{:02x}", entry.kind),
            words => words.to_owned(),
        },
    }
}

#[cfg(test)]
mod tests {
    use stetfs_format::width::usize_as_u64;

    use super::*;

    fn of(disk: &[u8]) -> Option<Table> {
        let read = |at: u64, out: &mut [u8]| {
            out.fill(0);
            let rest = disk.get(u64_as_usize(at)..).unwrap_or_default();
            let n = rest.len().min(out.len());
            out[..n].copy_from_slice(&rest[..n]);
            Ok(())
        };
        table(usize_as_u64(disk.len()), &read).unwrap()
    }

    fn put(disk: &mut [u8], sector: usize, entry: usize, kind: u8, first: u32, count: u32) {
        let at = sector * 512 + MBR_ENTRIES + entry * 16;
        disk[at + 4] = kind;
        disk[at + 8..at + 12].copy_from_slice(&first.to_le_bytes());
        disk[at + 12..at + 16].copy_from_slice(&count.to_le_bytes());
        disk[sector * 512 + 510..][..2].copy_from_slice(b"\x55\xaa");
    }

    /// Each table of the chain names the one before it.
    #[test]
    fn a_chain_that_leads_back_ends() {
        let mut disk = vec![0; 100 * 512];
        put(&mut disk, 0, 0, 0x05, 10, 80);
        put(&mut disk, 10, 0, 0x83, 1, 5);
        put(&mut disk, 10, 1, 0x05, 20, 10);
        put(&mut disk, 30, 0, 0x83, 1, 5);
        put(&mut disk, 30, 1, 0x05, 0, 10);
        let found = of(&disk).unwrap();
        let numbers: Vec<_> = found
            .entries
            .iter()
            .map(|e| (e.number, e.offset / 512))
            .collect();
        assert_eq!(numbers, [(1, 10), (5, 11), (6, 31)]);
    }

    #[test]
    fn counts_that_lie_take_no_memory() {
        let mut disk = vec![0xff; 8192];
        disk[512..520].copy_from_slice(b"EFI PART");
        assert!(!of(&disk).unwrap().is_sound);
        disk[512 + 72..512 + 80].copy_from_slice(&2_u64.to_le_bytes());
        disk[512 + 80..512 + 84].copy_from_slice(&128_u32.to_le_bytes());
        disk[512 + 84..512 + 88].copy_from_slice(&128_u32.to_le_bytes());
        let found = of(&disk).unwrap();
        assert!(!found.is_sound && found.entries.len() <= 128);
    }
}
