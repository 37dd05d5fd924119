//! Parses the kernels in PTX text with their parameters. Reads declarations, never instructions.

/// One kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) name: String,
    pub(super) parameters: Vec<Parameter>,
}

/// Offset and length of a kernel parameter, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Parameter {
    pub(crate) offset: usize,
    pub(crate) bytes: usize,
}

/// Parses the kernels of a text; returns `None` if the text is not valid PTX.
pub(super) fn entries(text: &str) -> Option<Vec<Entry>> {
    let text: String = text.lines().map(|line| line.split("//").next().unwrap_or_default()).collect::<Vec<_>>().join("\n");
    if !text.trim_start().starts_with(".version") {
        return None;
    }
    text.split(".entry").skip(1).map(entry).collect()
}

fn entry(text: &str) -> Option<Entry> {
    let end = text.find(['(', '{'])?;
    let name = text[..end].trim().to_owned();
    let mut parameters = Vec::new();
    if text[end..].starts_with('(') {
        let list = &text[end + 1..end + text[end..].find(')')?];
        let mut offset: usize = 0;
        for declaration in list.split(',').map(str::trim).filter(|declaration| !declaration.is_empty()) {
            let (bytes, alignment) = parameter(declaration)?;
            offset = offset.next_multiple_of(alignment);
            parameters.push(Parameter { offset, bytes });
            offset += bytes;
        }
    }
    Some(Entry { name, parameters })
}

/// Returns size and alignment of a parameter in bytes, for a declaration such as
/// `.param .align 8 .b8 slice[16]`.
fn parameter(declaration: &str) -> Option<(usize, usize)> {
    let words: Vec<&str> = declaration.split_whitespace().collect();
    let element = words.iter().find_map(|word| {
        let bits = word.strip_prefix('.')?.strip_prefix(['b', 'u', 's', 'f'])?.parse::<usize>().ok()?;
        Some(bits / 8)
    })?;
    let count = match declaration.rsplit_once('[') {
        Some((_, count)) => count.trim_end_matches(']').trim().parse().ok()?,
        None => 1,
    };
    // `.ptr .align N` describes the memory to which a pointer parameter points.
    let own = words.iter().take_while(|word| **word != ".ptr").position(|word| *word == ".align");
    let alignment = own.and_then(|at| words.get(at + 1)?.parse().ok());
    Some((element * count, alignment.unwrap_or(element)))
}

#[cfg(test)]
mod tests {
    use super::entries;

    #[test]
    fn kernel_parameters_are_laid_out_as_in_a_c_struct() {
        let text = "
            .version 7.8 // .entry no(.param .u64 x)
            .visible .entry first(
                .param .u64 .ptr .align 16 first_0,
                .param .align 8 .b8 first_1[16],
                .param .u8 first_2, .param .f32 first_3
            ) { ret; }
            .entry second() .maxntid 32 { ret; }
            .visible .entry third { ret; }";
        let found = entries(text).expect("the text is PTX");
        assert_eq!(found.iter().map(|entry| entry.name.as_str()).collect::<Vec<_>>(), ["first", "second", "third"]);
        let places: Vec<_> = found[0].parameters.iter().map(|parameter| (parameter.offset, parameter.bytes)).collect();
        assert_eq!(places, [(0, 8), (8, 16), (24, 1), (28, 4)]);
        assert!(found[1].parameters.is_empty() && found[2].parameters.is_empty());
        assert_eq!(entries("no invalid text is accepted"), None);
    }
}
