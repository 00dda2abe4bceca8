//! Makes texts equal that differ only in numbers and random names.

/// From this length on, such a word counts as random.
const DRAWN: usize = 6;

/// Replaces numbers and random words by `#`: numbers, words of hexadecimal digits with a decimal
/// digit among them, and words of at least [`DRAWN`] characters that have a digit before a letter
/// or follow `tmp_`.
pub(crate) fn without_numbers(text: &str) -> String {
    let mut out = String::new();
    let mut word = String::new();
    for c in text.chars().chain(['\n']) {
        if c.is_ascii_alphanumeric() {
            word.push(c);
            continue;
        }
        let is_digit = |c: char| c.is_ascii_digit();
        let is_hex = word.contains(is_digit) && word.chars().all(|c| c.is_ascii_hexdigit());
        let name = out.rsplit(['/', ' ']).next().unwrap_or_default();
        let is_drawn = word.len() >= DRAWN
            && (word.trim_end_matches(is_digit).contains(is_digit) || name.starts_with("tmp_"));
        if is_hex || is_drawn {
            out.push('#');
        } else {
            out += &digits_as_one(&word);
        }
        word.clear();
        out.push(c);
    }
    out.pop();
    out
}

pub(crate) fn digits_as_one(word: &str) -> String {
    let mut out = String::new();
    for c in word.chars() {
        if !c.is_ascii_digit() {
            out.push(c);
        } else if !out.ends_with('#') {
            out.push('#');
        }
    }
    out
}
