//! Superblock, descriptors and bitmaps of real images, judged by dumpe2fs.

mod image;

use image::{Image, on_every_kind};
use stetfs_format::group::{init_block_bitmap, init_inode_bitmap};
use stetfs_format::{Feature, GroupDesc, GroupFlags, SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE};

/// Returns the value behind `name:` in the output of dumpe2fs.
fn value<'a>(dump: &'a str, name: &str) -> &'a str {
    let line = dump
        .lines()
        .find(|line| line.starts_with(&format!("{name}:")));
    line.unwrap_or_else(|| panic!("no {name} in {dump}"))[name.len() + 1..].trim()
}

fn number(dump: &str, name: &str) -> u64 {
    let text = value(dump, name);
    match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16),
        None => text.parse(),
    }
    .unwrap_or_else(|error| panic!("{name}: {text}: {error}"))
}

#[test]
fn superblock_is_what_dumpe2fs_says() {
    on_every_kind(|_, image| {
        let (dump, volume) = (image.dumpe2fs(), image.read());
        let sb = &volume.sb;
        for (name, ours) in [
            ("Inode count", sb.inodes_count.into()),
            ("Block count", sb.blocks_count),
            ("Reserved block count", sb.r_blocks_count),
            ("Free blocks", sb.free_blocks_count),
            ("Free inodes", sb.free_inodes_count.into()),
            ("First block", sb.first_data_block.into()),
            ("Block size", sb.block_size() as u64),
            ("Blocks per group", sb.blocks_per_group().into()),
            ("Inodes per group", sb.inodes_per_group().into()),
            ("Inode blocks per group", sb.inode_table_blocks().into()),
            ("Mount count", sb.mnt_count.into()),
            ("First inode", sb.first_ino.into()),
            ("Inode size", sb.inode_size() as u64),
        ] {
            assert_eq!(ours, number(&dump, name), "{name}");
        }
        let uuid = value(&dump, "Filesystem UUID").replace('-', "");
        let ours: String = sb.uuid.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(ours, uuid);
        let features: Vec<String> = sb.features().map(|feature| feature.to_string()).collect();
        let mut theirs: Vec<_> = value(&dump, "Filesystem features").split(' ').collect();
        let mut ours: Vec<_> = features.iter().map(String::as_str).collect();
        ours.sort_unstable();
        theirs.sort_unstable();
        assert_eq!(ours, theirs);
        if sb.metadata_csum {
            assert_eq!(sb.features().count() as u32, {
                let all = |bits: u32| bits.count_ones();
                all(sb.feature_compat.bits())
                    + all(sb.feature_incompat.bits())
                    + all(sb.feature_ro_compat.bits())
            });
            assert_eq!(u64::from(sb.checksum_type), 1);
        }
        if dump.contains("Group descriptor size:") {
            assert_eq!(
                sb.desc_size() as u64,
                number(&dump, "Group descriptor size")
            );
        }
        if dump.contains("Flex block group size:") {
            assert_eq!(
                u64::from(sb.groups_per_flex),
                number(&dump, "Flex block group size")
            );
        }
        if dump.contains("Journal inode:") {
            assert_eq!(u64::from(sb.journal_inum), number(&dump, "Journal inode"));
        }
        if dump.contains("Checksum seed:") {
            assert_eq!(u64::from(sb.csum_seed()), number(&dump, "Checksum seed"));
        }
        assert!(sb.check_features().can_write(), "{:?}", sb.check_features());
    });
}

#[test]
fn superblock_encodes_to_the_same_bytes() {
    on_every_kind(|_, image| {
        let volume = image.read();
        let raw = &volume.bytes[SUPERBLOCK_OFFSET as usize..][..SUPERBLOCK_SIZE];
        let mut again = raw.to_vec();
        volume.sb.encode_into(&mut again);
        assert_eq!(again, raw);
        // Encoded onto zeros, only bytes that belong to no field could be missing; there are none.
        let mut fresh = vec![0; SUPERBLOCK_SIZE];
        volume.sb.encode_into(&mut fresh);
        assert_eq!(fresh, raw);
    });
}

/// `a-b` or `a` behind `label`, as dumpe2fs prints ranges of blocks.
fn first_after(text: &str, label: &str) -> Option<u64> {
    let rest = &text[text.find(label)? + label.len()..];
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().ok()
}

fn hex_after(text: &str, label: &str) -> Option<u32> {
    let rest = &text[text.find(label)? + label.len()..];
    let digits: String = rest.chars().take_while(char::is_ascii_hexdigit).collect();
    u32::from_str_radix(&digits, 16).ok()
}

#[test]
fn descriptors_are_what_dumpe2fs_says() {
    on_every_kind(|_, image| {
        let (dump, volume) = (image.dumpe2fs(), image.read());
        let sections: Vec<&str> = dump
            .split("\nGroup ")
            .filter(|text| text.starts_with(|first: char| first.is_ascii_digit()))
            .collect();
        assert_eq!(sections.len(), volume.sb.groups_count() as usize);
        for (g, text) in volume.groups().zip(sections) {
            let desc = volume.desc(g);
            assert!(text.starts_with(&format!("{g}: (Blocks {}-", volume.sb.group_first_block(g))));
            assert_eq!(
                first_after(text, "Block bitmap at "),
                Some(desc.block_bitmap.0)
            );
            assert_eq!(
                first_after(text, "Inode bitmap at "),
                Some(desc.inode_bitmap.0)
            );
            assert_eq!(
                first_after(text, "Inode table at "),
                Some(desc.inode_table.0)
            );
            let counts = [
                (desc.free_blocks_count, " free blocks, "),
                (desc.free_inodes_count, " free inodes, "),
                (desc.used_dirs_count, " directories"),
            ];
            for (ours, label) in counts {
                assert!(
                    text.contains(&format!("{ours}{label}")),
                    "{ours}{label} in {text}"
                );
            }
            for (flag, name) in [
                (GroupFlags::INODE_UNINIT, "INODE_UNINIT"),
                (GroupFlags::BLOCK_UNINIT, "BLOCK_UNINIT"),
                (GroupFlags::INODE_ZEROED, "ITABLE_ZEROED"),
            ] {
                assert_eq!(
                    desc.flags(&volume.sb).contains(flag),
                    text.contains(name),
                    "{text}"
                );
            }
            if volume.sb.metadata_csum {
                let block_bitmap = &text[text.find("Block bitmap at ").expect("a bitmap")..];
                let csum = hex_after(block_bitmap, "csum 0x");
                assert_eq!(csum, Some(desc.block_bitmap_csum), "{text}");
            }
            let has_super =
                text.contains("rimary superblock at") || text.contains("ackup superblock at");
            assert_eq!(volume.sb.has_super(g), has_super, "{text}");
        }
    });
}

#[test]
fn descriptors_encode_to_the_same_bytes() {
    on_every_kind(|_, image| {
        let volume = image.read();
        for g in volume.groups() {
            let raw = volume.desc_raw(g);
            let mut fresh = vec![0; raw.len()];
            volume.desc(g).encode_into(&mut fresh, g, &volume.sb);
            assert_eq!(fresh, raw, "group {g}");
            // Where there is a checksum, it finds a changed bit.
            if volume.sb.metadata_csum || volume.sb.gdt_csum {
                for bit in 0..raw.len() * 8 {
                    let mut bad = raw.to_vec();
                    bad[bit / 8] ^= 1 << (bit % 8);
                    GroupDesc::decode(&bad, g, &volume.sb).expect_err("a damaged descriptor");
                }
            }
        }
    });
}

#[test]
fn bitmaps_fit_counts_and_checksums() {
    on_every_kind(|_, image| {
        let volume = image.read();
        let sb = &volume.sb;
        for g in volume.groups() {
            let desc = volume.desc(g);
            let free = |bitmap: &[u8], bits: u32| {
                (0..bits)
                    .filter(|bit| bitmap[*bit as usize / 8] & 1 << (bit % 8) == 0)
                    .count()
            };
            let mut bitmap = volume.block(desc.block_bitmap).to_vec();
            if desc.flags(sb).contains(GroupFlags::BLOCK_UNINIT) {
                init_block_bitmap(&mut bitmap, g, &desc, sb);
            } else {
                desc.check_block_bitmap(&bitmap, g, sb)
                    .expect("a block bitmap");
            }
            assert_eq!(
                free(&bitmap, sb.group_blocks(g)),
                desc.free_blocks_count as usize
            );
            let mut bitmap = volume.block(desc.inode_bitmap).to_vec();
            if desc.flags(sb).contains(GroupFlags::INODE_UNINIT) {
                init_inode_bitmap(&mut bitmap, sb);
            } else {
                desc.check_inode_bitmap(&bitmap, g, sb)
                    .expect("an inode bitmap");
            }
            assert_eq!(
                free(&bitmap, sb.inodes_per_group()),
                desc.free_inodes_count as usize
            );
        }
    });
}

/// For groups that stay uninitialised while their neighbours fill, we make up the same bitmap as
/// e2fsck.
#[test]
fn uninitialised_groups_become_what_e2fsck_expects() {
    let args = [
        "-t",
        "ext4",
        "-b",
        "1024",
        "-g",
        "1024",
        "-O",
        "^resize_inode",
    ];
    for extra in [
        "64bit",
        "^flex_bg",
        "meta_bg",
        "^sparse_super",
        "^metadata_csum,uninit_bg",
    ] {
        let features = format!("^resize_inode,{extra}");
        let args = [&args[..], &["-O", &features]].concat();
        let Some(image) = Image::make(&args, 64 * 1024) else {
            continue;
        };
        let mut volume = image.read();
        let mut initialised = 0;
        for g in volume.groups() {
            let mut desc = volume.desc(g);
            let sb = volume.sb.clone();
            if !desc.flags(&sb).contains(GroupFlags::BLOCK_UNINIT) {
                continue;
            }
            let mut bitmap = vec![0; sb.block_size()];
            init_block_bitmap(&mut bitmap, g, &desc, &sb);
            desc.set_block_bitmap_csum(&bitmap, &sb);
            desc.flags.remove(GroupFlags::BLOCK_UNINIT);
            if desc.flags.contains(GroupFlags::INODE_UNINIT) {
                let mut inodes = vec![0; sb.block_size()];
                init_inode_bitmap(&mut inodes, &sb);
                desc.set_inode_bitmap_csum(&inodes, &sb);
                desc.flags.remove(GroupFlags::INODE_UNINIT);
                volume.block_mut(desc.inode_bitmap).copy_from_slice(&inodes);
            }
            volume.block_mut(desc.block_bitmap).copy_from_slice(&bitmap);
            let (block, offset) = sb.desc_position(g);
            let raw = &mut volume.block_mut(block)[offset..];
            desc.encode_into(raw, g, &sb);
            initialised += 1;
        }
        assert!(initialised > 0, "{extra}: no group was uninitialised");
        image.write(&volume);
        image.assert_clean(extra);
    }
}

#[test]
fn features_have_mke2fs_names() {
    // mke2fs knows the names that we give to features.
    for (feature, name) in [
        (Feature::Incompat(0x8000), "inline_data"),
        (Feature::Incompat(0x10000), "encrypt"),
        (Feature::Incompat(0x20000), "casefold"),
        (Feature::Incompat(0x400), "ea_inode"),
        (Feature::Incompat(0x100), "mmp"),
        (Feature::RoCompat(0x100), "quota"),
        (Feature::RoCompat(0x200), "bigalloc"),
        (Feature::RoCompat(0x2000), "project"),
        (Feature::RoCompat(0x8000), "verity"),
    ] {
        assert_eq!(feature.to_string(), name);
        let args = [
            "-t",
            "ext4",
            "-b",
            "4096",
            "-O",
            &format!("{name},quota,64bit"),
        ];
        let Some(image) = Image::make(&args, 64 * 1024) else {
            continue;
        };
        let check = image.read().sb.check_features();
        match feature {
            // Supported.
            Feature::Incompat(0x100 | 0x8000) => assert_eq!(check.refuse.as_slice(), []),
            Feature::Incompat(bit) if bit != 0x400 => {
                assert_eq!(check.refuse.as_slice(), [feature], "{name}");
                assert!(!check.can_mount());
            }
            _ => {
                assert!(check.read_only.contains(&feature), "{name}: {check:?}");
                assert!(check.can_mount() && !check.can_write());
            }
        }
    }
}
