//! JSON, as far as the protocol has it: ints of 64 bits stay ints, objects keep their order.

#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    Null,
    Bool(bool),
    Int(i64),
    Real(f64),
    Text(String),
    List(Vec<Value>),
    Object(Vec<(String, Value)>),
}

use Value::*;

impl Value {
    pub fn get(&self, name: &str) -> Option<&Value> {
        match self {
            Object(members) => members.iter().find(|(key, _)| key == name).map(|(_, value)| value),
            _ => None,
        }
    }
    /// The member, unless it is missing or null.
    pub fn given(&self, name: &str) -> Option<&Value> {
        self.get(name).filter(|value| **value != Null)
    }
    pub fn int(&self) -> Option<i64> {
        if let Int(number) = self { Some(*number) } else { None }
    }
    pub fn truth(&self) -> Option<bool> {
        if let Bool(truth) = self { Some(*truth) } else { None }
    }
    pub fn text(&self) -> Option<&str> {
        if let Text(text) = self { Some(text) } else { None }
    }
    pub fn list(&self) -> Option<&[Value]> {
        if let List(items) = self { Some(items) } else { None }
    }
    pub fn real(&self) -> Option<f64> {
        match self {
            Real(number) => Some(*number),
            Int(number) => Some(*number as f64),
            _ => None,
        }
    }
}

pub fn object<const N: usize>(members: [(&str, Value); N]) -> Value {
    Object(members.into_iter().map(|(name, value)| (name.to_string(), value)).collect())
}
pub fn ints<'a>(numbers: impl IntoIterator<Item = &'a i64>) -> Value {
    List(numbers.into_iter().map(|number| Int(*number)).collect())
}
pub fn lists(lists: &[Vec<i64>]) -> Value {
    List(lists.iter().map(ints).collect())
}
pub fn hex(bytes: &[u8]) -> Value {
    Text(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

pub fn write(value: &Value, out: &mut String) {
    match value {
        Null => out.push_str("null"),
        Bool(truth) => out.push_str(if *truth { "true" } else { "false" }),
        Int(number) => out.push_str(&number.to_string()),
        Real(number) => out.push_str(&format!("{number:?}")), // the shortest text that reads the same
        Text(text) => write_text(text, out),
        List(items) => {
            out.push('[');
            for (place, item) in items.iter().enumerate() {
                if place > 0 {
                    out.push(',');
                }
                write(item, out);
            }
            out.push(']');
        }
        Object(members) => {
            out.push('{');
            for (place, (name, item)) in members.iter().enumerate() {
                if place > 0 {
                    out.push(',');
                }
                write_text(name, out);
                out.push(':');
                write(item, out);
            }
            out.push('}');
        }
    }
}

fn write_text(text: &str, out: &mut String) {
    out.push('"');
    for letter in text.chars() {
        match letter {
            '"' | '\\' => out.extend(['\\', letter]),
            '\0'..='\x1f' => out.push_str(&format!("\\u{:04x}", letter as u32)),
            _ => out.push(letter),
        }
    }
    out.push('"');
}

pub struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

type Read<T> = Result<T, String>;

impl<'a> Reader<'a> {
    pub fn document(text: &'a str) -> Read<Value> {
        let mut reader = Reader { bytes: text.as_bytes(), at: 0 };
        let value = reader.value(0)?;
        reader.space();
        if reader.at == reader.bytes.len() { Ok(value) } else { Err(reader.problem("something more")) }
    }
    fn problem(&self, what: &str) -> String {
        format!("no JSON at byte {}: {what}", self.at)
    }
    fn space(&mut self) {
        while self.bytes.get(self.at).is_some_and(|byte| b" \t\r\n".contains(byte)) {
            self.at += 1;
        }
    }
    fn take(&mut self, word: &str) -> bool {
        let there = self.bytes[self.at..].starts_with(word.as_bytes());
        self.at += if there { word.len() } else { 0 };
        there
    }
    fn expect(&mut self, word: &str) -> Read<()> {
        self.space();
        if self.take(word) { Ok(()) } else { Err(self.problem(&format!("{word} is missing"))) }
    }
    fn value(&mut self, depth: usize) -> Read<Value> {
        if depth > 100 {
            return Err(self.problem("nested too deeply"));
        }
        self.space();
        for (word, value) in [("null", Null), ("true", Bool(true)), ("false", Bool(false))] {
            if self.take(word) {
                return Ok(value);
            }
        }
        match self.bytes.get(self.at) {
            Some(b'"') => self.text().map(Text),
            Some(b'[') => self.items("[", "]", |reader| reader.value(depth + 1)).map(List),
            Some(b'{') => {
                let members = self.items("{", "}", |reader| {
                    reader.space();
                    let name = reader.text()?;
                    reader.expect(":")?;
                    Ok((name, reader.value(depth + 1)?))
                })?;
                Ok(Object(members))
            }
            _ => self.number(),
        }
    }
    fn items<T>(&mut self, open: &str, close: &str, each: impl Fn(&mut Self) -> Read<T>) -> Read<Vec<T>> {
        self.expect(open)?;
        let mut items = Vec::new();
        self.space();
        if self.take(close) {
            return Ok(items);
        }
        loop {
            items.push(each(self)?);
            self.space();
            if self.take(close) {
                return Ok(items);
            }
            self.expect(",")?;
        }
    }
    fn number(&mut self) -> Read<Value> {
        let start = self.at;
        while self.bytes.get(self.at).is_some_and(|byte| b"+-.eE0123456789".contains(byte)) {
            self.at += 1;
        }
        let text = std::str::from_utf8(&self.bytes[start..self.at]).expect("ASCII");
        if let Ok(number) = text.parse() {
            return Ok(Int(number));
        }
        text.parse().map(Real).map_err(|_| self.problem("no value"))
    }
    fn text(&mut self) -> Read<String> {
        self.expect("\"")?;
        let mut bytes = Vec::new();
        loop {
            let byte = *self.bytes.get(self.at).ok_or_else(|| self.problem("cut off"))?;
            self.at += 1;
            match byte {
                b'"' => return String::from_utf8(bytes).map_err(|_| self.problem("no UTF-8")),
                b'\\' => {
                    let letter = self.escaped()?;
                    bytes.extend(letter.encode_utf8(&mut [0; 4]).bytes());
                }
                _ => bytes.push(byte),
            }
        }
    }
    fn escaped(&mut self) -> Read<char> {
        let kind = *self.bytes.get(self.at).ok_or_else(|| self.problem("cut off"))?;
        self.at += 1;
        Ok(match kind {
            b'n' => '\n',
            b't' => '\t',
            b'r' => '\r',
            b'b' => '\x08',
            b'f' => '\x0c',
            b'"' | b'\\' | b'/' => kind as char,
            b'u' => {
                let high = self.code_unit()?;
                let code = if (0xd800..0xdc00).contains(&high) && self.take("\\u") {
                    0x10000 + ((high - 0xd800) << 10) + (self.code_unit()?.wrapping_sub(0xdc00) & 0x3ff)
                } else {
                    high
                };
                char::from_u32(code).unwrap_or('\u{fffd}')
            }
            _ => return Err(self.problem("unknown escape")),
        })
    }
    fn code_unit(&mut self) -> Read<u32> {
        let digits = self.bytes.get(self.at..self.at + 4).and_then(|four| std::str::from_utf8(four).ok());
        let code = digits.and_then(|four| u32::from_str_radix(four, 16).ok());
        self.at += 4;
        code.ok_or_else(|| self.problem("no code unit"))
    }
}
