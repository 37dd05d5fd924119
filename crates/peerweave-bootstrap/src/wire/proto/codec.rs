//! Encodes and decodes frames.
//!
//! Invariant: only `decode` parses untrusted bytes. It uses `Reader`, which checks every length
//! first.

use super::{
    Collective, Fault, Frame, HELLO_FRAME_LEN_BYTES, Hello, MAGIC, MAX_BLOB_LEN_BYTES, MAX_DETAIL_LEN_BYTES, MAX_FRAME_LEN_BYTES,
    MAX_KEY_LEN_BYTES, MAX_PES, ProtocolError, ROUND_BIT, Refusal, VERSION,
};
use crate::job::token::Token;

/// Appends the encoding of a frame without its length prefix.
pub(super) fn encode(frame: &Frame, out: &mut Vec<u8>) {
    encode_body(frame, &mut Writer(out));
}

/// Decodes the frame at the start of `bytes`. Returns the frame and its length, or `None` if more
/// bytes are needed.
///
/// Refuses invalid data as early as possible. An unknown kind is refused at the byte that encodes
/// the kind. A wrong magic number is refused at its first wrong byte.
///
/// ```
/// use peerweave_bootstrap::proto::{Frame, decode};
///
/// let bytes = Frame::Done { request: 7 }.to_bytes();
/// assert_eq!(decode(&bytes)?, Some((Frame::Done { request: 7 }, bytes.len())));
/// assert_eq!(decode(&bytes[..3])?, None);
/// assert!(decode(b"GET / HTTP/1.1\r\n").is_err());
/// # Ok::<(), peerweave_bootstrap::proto::ProtocolError>(())
/// ```
///
/// # Errors
/// [`ProtocolError`] if no continuation of `bytes` can be a valid frame.
pub fn decode(bytes: &[u8]) -> Result<Option<(Frame, usize)>, ProtocolError> {
    let Some((prefix, rest)) = bytes.split_first_chunk::<4>() else { return Ok(None) };
    let len_bytes = u32::from_le_bytes(*prefix);
    if len_bytes == 0 || len_bytes as usize > MAX_FRAME_LEN_BYTES {
        return Err(ProtocolError::FrameLength { len_bytes });
    }
    let Some((&kind, fields)) = rest.split_first() else { return Ok(None) };
    match kind {
        1 => {
            if len_bytes as usize != HELLO_FRAME_LEN_BYTES - 4 {
                return Err(ProtocolError::FrameLength { len_bytes });
            }
            let seen = fields.len().min(MAGIC.len());
            if fields[..seen] != MAGIC[..seen] {
                return Err(ProtocolError::Magic);
            }
        }
        2..=10 | 16..=25 => {}
        _ => return Err(ProtocolError::Kind { kind }),
    }
    let Some(body) = fields.get(..len_bytes as usize - 1) else { return Ok(None) };
    let mut r = Reader(body);
    let frame = decode_fields(kind, &mut r)?;
    match r.0.len() {
        0 => Ok(Some((frame, 4 + len_bytes as usize))),
        len_bytes => Err(ProtocolError::Trailing { len_bytes }),
    }
}

fn decode_fields(kind: u8, r: &mut Reader<'_>) -> Result<Frame, ProtocolError> {
    Ok(match kind {
        1 => {
            r.array::<{ MAGIC.len() }>("magic")?;
            let found = u16::from_le_bytes(r.array("version")?);
            if found != VERSION {
                return Err(ProtocolError::Version { found });
            }
            let (pe, n_pes, pid) = (r.u32("pe")?, r.u32("n_pes")?, r.u32("pid")?);
            if n_pes == 0 || n_pes > MAX_PES {
                return Err(ProtocolError::Field { field: "n_pes" });
            }
            if pe >= n_pes {
                return Err(ProtocolError::Field { field: "pe" });
            }
            Frame::Hello(Hello { pe, n_pes, pid, token: Token::from_bytes(r.array("token")?) })
        }
        2 => {
            let request = r.u64("request")?;
            let collective = match r.u8("collective")? {
                0 => Collective::Barrier,
                1 => Collective::Exchange,
                _ => return Err(ProtocolError::Field { field: "collective" }),
            };
            let label = r.text("label", MAX_KEY_LEN_BYTES)?;
            let blob = r.bytes("blob", MAX_BLOB_LEN_BYTES)?;
            if request & ROUND_BIT == 0 {
                return Err(ProtocolError::Field { field: "request" });
            }
            if collective == Collective::Barrier && !blob.is_empty() {
                return Err(ProtocolError::Field { field: "blob" });
            }
            Frame::Enter { request, collective, label, blob }
        }
        3 => Frame::Put { request: r.u64("request")?, key: r.key()?, value: r.bytes("value", MAX_BLOB_LEN_BYTES)? },
        4 => Frame::Get {
            request: r.u64("request")?,
            key: r.key()?,
            wait: match r.u8("wait")? {
                0 => false,
                1 => true,
                _ => return Err(ProtocolError::Field { field: "wait" }),
            },
        },
        5 => Frame::Check { request: r.u64("request")? },
        6 => Frame::Cancel { request: r.u64("request")? },
        7 => Frame::Leave,
        8 => Frame::Remove { request: r.u64("request")?, key: r.key()? },
        9 => Frame::Blame { pe: r.pe()? },
        10 => Frame::Abort { code: r.u8("code")? },
        16 => Frame::Welcome,
        17 => Frame::Refused {
            reason: match r.u8("reason")? {
                0 => Refusal::Token,
                1 => Refusal::AlreadyJoined,
                2 => Refusal::NPes,
                3 => Refusal::Version,
                _ => return Err(ProtocolError::Field { field: "reason" }),
            },
        },
        18 => Frame::Part { request: r.u64("request")?, blob: r.bytes("blob", MAX_BLOB_LEN_BYTES)? },
        19 => Frame::Done { request: r.u64("request")? },
        20 => Frame::Value { request: r.u64("request")?, value: r.bytes("value", MAX_BLOB_LEN_BYTES)? },
        21 => Frame::Absent { request: r.u64("request")? },
        22 => Frame::Late { request: r.u64("request")?, missing: r.pes("missing")? },
        23 => Frame::Failed { request: r.u64("request")?, fault: decode_fault(r)? },
        24 => Frame::Lost { fault: decode_fault(r)? },
        25 => Frame::Aborted { pe: r.pe()?, code: r.u8("code")? },
        _ => return Err(ProtocolError::Kind { kind }),
    })
}

fn encode_fault(fault: &Fault, w: &mut Writer<'_>) {
    match fault {
        Fault::Disconnected { pe } => {
            w.u8(0);
            w.u32(*pe);
        }
        Fault::Left { pe } => {
            w.u8(1);
            w.u32(*pe);
        }
        Fault::Reported { pe, why } => {
            w.u8(2);
            w.u32(*pe);
            w.bytes(why.as_bytes());
        }
        Fault::GaveUp { pe, missing } => {
            w.u8(3);
            w.u32(*pe);
            w.pes(missing);
        }
        Fault::Mismatch { one, one_call, other, other_call } => {
            w.u8(4);
            w.u32(*one);
            w.bytes(one_call.as_bytes());
            w.u32(*other);
            w.bytes(other_call.as_bytes());
        }
        Fault::StoreFull { len_bytes, limit_bytes } => {
            w.u8(5);
            w.u64(*len_bytes);
            w.u64(*limit_bytes);
        }
        Fault::Closing => w.u8(6),
    }
}

fn decode_fault(r: &mut Reader<'_>) -> Result<Fault, ProtocolError> {
    Ok(match r.u8("fault")? {
        0 => Fault::Disconnected { pe: r.pe()? },
        1 => Fault::Left { pe: r.pe()? },
        2 => Fault::Reported { pe: r.pe()?, why: r.text("why", MAX_DETAIL_LEN_BYTES)? },
        3 => Fault::GaveUp { pe: r.pe()?, missing: r.pes("missing")? },
        4 => Fault::Mismatch {
            one: r.pe()?,
            one_call: r.text("call", MAX_DETAIL_LEN_BYTES)?,
            other: r.pe()?,
            other_call: r.text("call", MAX_DETAIL_LEN_BYTES)?,
        },
        5 => Fault::StoreFull { len_bytes: r.u64("length")?, limit_bytes: r.u64("limit")? },
        6 => Fault::Closing,
        _ => return Err(ProtocolError::Field { field: "fault" }),
    })
}

fn encode_body(frame: &Frame, w: &mut Writer<'_>) {
    match frame {
        Frame::Hello(hello) => {
            w.u8(1);
            w.0.extend(MAGIC);
            w.0.extend(VERSION.to_le_bytes());
            w.u32(hello.pe);
            w.u32(hello.n_pes);
            w.u32(hello.pid);
            w.0.extend(hello.token.as_bytes());
        }
        Frame::Enter { request, collective, label, blob } => {
            w.request(2, *request);
            w.u8(match collective {
                Collective::Barrier => 0,
                Collective::Exchange => 1,
            });
            w.bytes(label.as_bytes());
            w.bytes(blob);
        }
        Frame::Put { request, key, value } => {
            w.request(3, *request);
            w.bytes(key.as_bytes());
            w.bytes(value);
        }
        Frame::Get { request, key, wait } => {
            w.request(4, *request);
            w.bytes(key.as_bytes());
            w.u8(u8::from(*wait));
        }
        Frame::Check { request } => w.request(5, *request),
        Frame::Cancel { request } => w.request(6, *request),
        Frame::Remove { request, key } => {
            w.request(8, *request);
            w.bytes(key.as_bytes());
        }
        Frame::Blame { pe } => {
            w.u8(9);
            w.u32(*pe);
        }
        Frame::Abort { code } => {
            w.u8(10);
            w.u8(*code);
        }
        Frame::Leave => w.u8(7),
        Frame::Welcome => w.u8(16),
        Frame::Refused { reason } => {
            w.u8(17);
            w.u8(match reason {
                Refusal::Token => 0,
                Refusal::AlreadyJoined => 1,
                Refusal::NPes => 2,
                Refusal::Version => 3,
            });
        }
        Frame::Part { request, blob } => {
            w.request(18, *request);
            w.bytes(blob);
        }
        Frame::Done { request } => w.request(19, *request),
        Frame::Value { request, value } => {
            w.request(20, *request);
            w.bytes(value);
        }
        Frame::Absent { request } => w.request(21, *request),
        Frame::Late { request, missing } => {
            w.request(22, *request);
            w.pes(missing);
        }
        Frame::Failed { request, fault } => {
            w.request(23, *request);
            encode_fault(fault, w);
        }
        Frame::Lost { fault } => {
            w.u8(24);
            encode_fault(fault, w);
        }
        Frame::Aborted { pe, code } => {
            w.u8(25);
            w.u32(*pe);
            w.u8(*code);
        }
    }
}

struct Writer<'a>(&'a mut Vec<u8>);

impl Writer<'_> {
    fn u8(&mut self, value: u8) {
        self.0.push(value);
    }

    fn u32(&mut self, value: u32) {
        self.0.extend(value.to_le_bytes());
    }

    fn u64(&mut self, value: u64) {
        self.0.extend(value.to_le_bytes());
    }

    fn request(&mut self, kind: u8, request: u64) {
        self.u8(kind);
        self.u64(request);
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.u32(bytes.len() as u32);
        self.0.extend_from_slice(bytes);
    }

    fn pes(&mut self, pes: &[u32]) {
        self.u32(pes.len() as u32);
        pes.iter().for_each(|pe| self.u32(*pe));
    }
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn array<const N: usize>(&mut self, field: &'static str) -> Result<[u8; N], ProtocolError> {
        let (array, rest) = self.0.split_first_chunk().ok_or(ProtocolError::Field { field })?;
        self.0 = rest;
        Ok(*array)
    }

    fn u8(&mut self, field: &'static str) -> Result<u8, ProtocolError> {
        Ok(self.array::<1>(field)?[0])
    }

    fn u32(&mut self, field: &'static str) -> Result<u32, ProtocolError> {
        Ok(u32::from_le_bytes(self.array(field)?))
    }

    fn u64(&mut self, field: &'static str) -> Result<u64, ProtocolError> {
        Ok(u64::from_le_bytes(self.array(field)?))
    }

    fn pe(&mut self) -> Result<u32, ProtocolError> {
        match self.u32("pe")? {
            pe if pe < MAX_PES => Ok(pe),
            _ => Err(ProtocolError::Field { field: "pe" }),
        }
    }

    /// Reads a length-prefixed slice of at most `limit_bytes` bytes.
    fn slice(&mut self, field: &'static str, limit_bytes: usize) -> Result<&'a [u8], ProtocolError> {
        let len_bytes = self.u32(field)? as usize;
        if len_bytes > limit_bytes || len_bytes > self.0.len() {
            return Err(ProtocolError::Field { field });
        }
        let (slice, rest) = self.0.split_at(len_bytes);
        self.0 = rest;
        Ok(slice)
    }

    fn bytes(&mut self, field: &'static str, limit_bytes: usize) -> Result<Vec<u8>, ProtocolError> {
        Ok(self.slice(field, limit_bytes)?.to_vec())
    }

    fn text(&mut self, field: &'static str, limit_bytes: usize) -> Result<String, ProtocolError> {
        let slice = self.slice(field, limit_bytes)?;
        Ok(std::str::from_utf8(slice).map_err(|_| ProtocolError::Field { field })?.to_owned())
    }

    fn key(&mut self) -> Result<String, ProtocolError> {
        self.text("key", MAX_KEY_LEN_BYTES)
    }

    /// Reads a list of PEs. Returns an error if the list is not strictly ascending.
    fn pes(&mut self, field: &'static str) -> Result<Vec<u32>, ProtocolError> {
        let count = self.u32(field)? as usize;
        if count > MAX_PES as usize || 4 * count > self.0.len() {
            return Err(ProtocolError::Field { field });
        }
        let pes: Vec<u32> = (0..count).map(|_| self.pe()).collect::<Result<_, _>>()?;
        if pes.windows(2).any(|pair| pair[0] >= pair[1]) {
            return Err(ProtocolError::Field { field });
        }
        Ok(pes)
    }
}
