package history

import (
	"bytes"
	"compress/flate"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"math"
	"strconv"
)

// A chunk is what a file has of some minutes in a row:
//
//	"RVH1" | length uint32 | CRC-32C uint32 | DEFLATE of
//	    first minute since 1970 int64 | minutes uint16 | series uint16
//	    per series: length uint8, name
//	    per series: a code uint16 for each minute
//
// Numbers are little endian; length and checksum are those of the compressed part. A series has one place in all
// minutes of its chunk.
const (
	magic  = "RVH1"
	header = len(magic) + 8
	// maxSeries bounds the series of a minute, maxMinutes the minutes of a chunk, maxName a series' name in bytes.
	maxSeries, maxMinutes, maxName = 640, 15, 100
	// maxChunk bounds the parts of a chunk, compressed or not.
	maxChunk = 12 + maxSeries*(1+maxName+2*maxMinutes)
)

// chunk are the samples of some minutes in a row.
type chunk struct {
	minute int64 // the first one, since 1970
	names  []string
	rows   [][]uint16 // one for each minute, with a code for each name
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func (c *chunk) encode() ([]byte, error) {
	raw := binary.LittleEndian.AppendUint64(nil, uint64(c.minute))
	raw = binary.LittleEndian.AppendUint16(raw, uint16(len(c.rows)))
	raw = binary.LittleEndian.AppendUint16(raw, uint16(len(c.names)))
	for _, n := range c.names {
		raw = append(append(raw, byte(len(n))), n...)
	}
	for i := range c.names {
		for _, row := range c.rows {
			raw = binary.LittleEndian.AppendUint16(raw, row[i])
		}
	}
	out := bytes.NewBuffer(make([]byte, header, header+len(raw)/2))
	w, err := flate.NewWriter(out, flate.BestCompression)
	if err != nil {
		return nil, err
	}
	if _, err := w.Write(raw); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	b := out.Bytes()
	copy(b, magic)
	binary.LittleEndian.PutUint32(b[len(magic):], uint32(len(b)-header))
	binary.LittleEndian.PutUint32(b[len(magic)+4:], crc32.Checksum(b[header:], castagnoli))
	return b, nil
}

var errTorn = errors.New("history: a chunk is incomplete or damaged")

// decode reads the first chunk of a file's content, and returns the rest. The error is io.EOF at the end, or errTorn.
func decode(b []byte) (c chunk, rest []byte, err error) {
	if len(b) == 0 {
		return c, nil, io.EOF
	}
	if len(b) < header || string(b[:len(magic)]) != magic {
		return c, nil, errTorn
	}
	n := int(binary.LittleEndian.Uint32(b[len(magic):]))
	if n > maxChunk || len(b)-header < n {
		return c, nil, errTorn
	}
	packed := b[header : header+n]
	if crc32.Checksum(packed, castagnoli) != binary.LittleEndian.Uint32(b[len(magic)+4:]) {
		return c, nil, errTorn
	}
	raw, err := io.ReadAll(io.LimitReader(flate.NewReader(bytes.NewReader(packed)), maxChunk+1))
	if err != nil || len(raw) < 12 {
		return c, nil, errTorn
	}
	c.minute = int64(binary.LittleEndian.Uint64(raw))
	minutes, series := int(binary.LittleEndian.Uint16(raw[8:])), int(binary.LittleEndian.Uint16(raw[10:]))
	raw = raw[12:]
	if minutes > maxMinutes || series > maxSeries {
		return c, nil, errTorn
	}
	for range series {
		if len(raw) == 0 || len(raw) <= int(raw[0]) {
			return c, nil, errTorn
		}
		c.names = append(c.names, string(raw[1:1+raw[0]]))
		raw = raw[1+raw[0]:]
	}
	if len(raw) != 2*minutes*series {
		return c, nil, errTorn
	}
	c.rows = make([][]uint16, minutes)
	for m := range c.rows {
		c.rows[m] = make([]uint16, series)
		for i := range c.rows[m] {
			c.rows[m][i] = binary.LittleEndian.Uint16(raw[2*(i*minutes+m):])
		}
	}
	return c, b[header+n:], nil
}

// A code is a value on a logarithmic scale: 0 is 0 and what is less, absent is no value. Between, neighbours differ by
// 0.07 %.
const (
	absent   = math.MaxUint16
	least    = 1e-6 // the value of code 1
	mostCode = absent - 1
	decades  = 19
)

var perCode = decades * math.Ln10 / (mostCode - 1)

func encodeValue(v float64) uint16 {
	switch {
	case math.IsNaN(v):
		return absent
	case v < least:
		return 0
	}
	return uint16(min(1+math.Round(math.Log(v/least)/perCode), mostCode))
}

// decodeValue rounds to three digits, so that counts up to 999 are exact.
func decodeValue(code uint16) float64 {
	switch code {
	case absent:
		return math.NaN()
	case 0:
		return 0
	}
	v := least * math.Exp(float64(code-1)*perCode)
	v, _ = strconv.ParseFloat(strconv.FormatFloat(v, 'g', 3, 64), 64)
	return v
}
