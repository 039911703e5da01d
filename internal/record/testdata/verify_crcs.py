"""Verifies both checksums of every batch in segment files, with nothing but the generated code of record.proto.

usage: verify_crcs.py STUBS SEGMENT...

STUBS is the folder that protoc --python_out wrote to. Prints one line a batch, and exits with 1 when a checksum is wrong.
"""

import sys


def castagnoli_table():
    table = []
    for n in range(256):
        for _ in range(8):
            n = (n >> 1) ^ 0x82F63B78 if n & 1 else n >> 1
        table.append(n)
    return table


TABLE = castagnoli_table()


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc = (crc >> 8) ^ TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def varint(n):
    out = bytearray()
    while n >= 0x80:
        out.append(n & 0x7F | 0x80)
        n >>= 7
    out.append(n)
    return bytes(out)


def checksums(batch):
    """The header's and the payload's checksum, computed anew from the decoded message."""
    if batch.HasField("records"):
        number, payload = 32, batch.records.SerializeToString()
    else:
        number, payload = 33, batch.compressed_records
    header = type(batch)()
    header.CopyFrom(batch)
    for field in ("header_crc32c", "records", "compressed_records"):
        header.ClearField(field)
    # From the end of header_crc32c to the first byte of the payload's content: the other header fields, then the payload's tag
    # (wire type 2) and length.
    covered = header.SerializeToString() + varint(number << 3 | 2) + varint(len(payload))
    return crc32c(covered), crc32c(payload)


def main(stubs, paths):
    sys.path.insert(0, stubs)
    from runnel.v1 import record_pb2

    wrong = 0
    for path in paths:
        with open(path, "rb") as f:
            segment = record_pb2.Segment.FromString(f.read())
        for batch in segment.batches:
            header, payload = checksums(batch)
            ok = header == batch.header_crc32c and payload == batch.payload_crc32c
            wrong += not ok
            print(batch.base_offset, "%08x" % header, "%08x" % payload, "ok" if ok else "WRONG")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
