//! How names are shown. A file name in an image must not reach a terminal as a command.

/// Returns a name or path as `ls -b` shows it, except that spaces stay. Characters that cannot be
/// printed become `\n`, `\t`, ... or octal (`\033`), and a backslash is doubled. Letters of all
/// scripts stay; bytes that are not UTF-8 are shown one by one.
pub(crate) fn shown(name: &[u8]) -> String {
    let mut text = String::with_capacity(name.len());
    for chunk in name.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '\\' => text.push_str("\\\\"),
                c if !is_printable(c) => {
                    let mut bytes = [0; 4];
                    c.encode_utf8(&mut bytes)
                        .bytes()
                        .for_each(|b| escape(b, &mut text));
                }
                c => text.push(c),
            }
        }
        chunk.invalid().iter().for_each(|&b| escape(b, &mut text));
    }
    text
}

/// True unless this is a control character or changes the order or visibility of the text beside
/// it.
fn is_printable(c: char) -> bool {
    !c.is_control()
        && !matches!(
            c,
            '\u{ad}' | '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}' | '\u{feff}'
        )
}

fn escape(byte: u8, text: &mut String) {
    let letter = match byte {
        0x07 => 'a',
        0x08 => 'b',
        b'\t' => 't',
        b'\n' => 'n',
        0x0b => 'v',
        0x0c => 'f',
        b'\r' => 'r',
        _ => {
            text.push_str(&format!("\\{byte:03o}"));
            return;
        }
    };
    text.extend(['\\', letter]);
}

#[cfg(test)]
mod tests {
    use super::shown;

    #[test]
    fn nothing_shown_is_a_command_to_a_terminal() {
        assert_eq!(shown("Größe é 名前 a b".as_bytes()), "Größe é 名前 a b");
        assert_eq!(shown(b"a\nb\x1b[2J\x7f\\"), "a\\nb\\033[2J\\177\\\\");
        // Bytes that are not UTF-8, a C1 control character, letters from right to left.
        assert_eq!(shown(b"\xff\xc2\x9b1m"), "\\377\\302\\2331m");
        assert_eq!(shown("\u{202e}gpj".as_bytes()), "\\342\\200\\256gpj");
    }
}
