#![no_main]

#[path = "../../crates/format/tests/decoders/mod.rs"]
mod decoders;

libfuzzer_sys::fuzz_target!(|data: &[u8]| decoders::nand_block_record(data));
