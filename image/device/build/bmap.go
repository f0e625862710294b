package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/xml"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"rivulet/image/device/layout"
)

// A block map lists the parts of the image that have to be written (bmaptool's format, version 2.0), so that the empty
// part of a card of 32 GB is not written.
const blockSize = 4096

// span is a range of blocks, both ends included.
type span struct{ first, last int64 }

// mapped returns the blocks to write: the partition table, each partition up to its last byte that is not zero, all of
// the data partition (its zeros have a meaning), and the second table.
func (j *job) mapped() ([]span, error) {
	all := []span{{0, layout.Start/blockSize - 1}}
	for _, p := range j.partitions() {
		if p.file == "" {
			continue
		}
		used := p.size
		if !p.whole {
			var err error
			if used, err = lastByte(filepath.Join(j.work, p.file)); err != nil {
				return nil, err
			}
		}
		all = append(all, span{p.begin / blockSize, (p.begin + used - 1) / blockSize})
	}
	return append(all, span{(imageSize - layout.MiB) / blockSize, imageSize/blockSize - 1}), nil
}

// lastByte is the length of a file without the zeros at its end.
func lastByte(path string) (int64, error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	buf, at, last := make([]byte, 1<<20), int64(0), int64(0)
	for {
		n, err := io.ReadFull(f, buf)
		if used := len(bytes.TrimRight(buf[:n], "\x00")); used > 0 {
			last = at + int64(used)
		}
		at += int64(n)
		if err == io.EOF || err == io.ErrUnexpectedEOF {
			return last, nil
		}
		if err != nil {
			return 0, err
		}
	}
}

type bmapRange struct {
	Sum  string `xml:"chksum,attr"`
	Text string `xml:",chardata"`
}

type bmapFile struct {
	XMLName  xml.Name    `xml:"bmap"`
	Version  string      `xml:"version,attr"`
	Size     int64       `xml:"ImageSize"`
	Block    int64       `xml:"BlockSize"`
	Blocks   int64       `xml:"BlocksCount"`
	Mapped   int64       `xml:"MappedBlocksCount"`
	SumType  string      `xml:"ChecksumType"`
	Sum      string      `xml:"BmapFileChecksum"`
	BlockMap []bmapRange `xml:"BlockMap>Range"`
}

// blockMap writes the map of an image. The map's own hash is computed with zeros in its place.
func blockMap(image string, spans []span) ([]byte, error) {
	f, err := os.Open(image)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	zero := strings.Repeat("0", 64)
	m := bmapFile{Version: "2.0", Size: info.Size(), Block: blockSize, Blocks: (info.Size() + blockSize - 1) / blockSize, SumType: "sha256", Sum: zero}
	slices.SortFunc(spans, func(x, y span) int { return int(x.first - y.first) })
	for _, s := range joined(spans) {
		h := sha256.New()
		if _, err := io.Copy(h, io.NewSectionReader(f, s.first*blockSize, (s.last-s.first+1)*blockSize)); err != nil {
			return nil, err
		}
		m.Mapped += s.last - s.first + 1
		m.BlockMap = append(m.BlockMap, bmapRange{hex.EncodeToString(h.Sum(nil)), fmt.Sprintf(" %d-%d ", s.first, s.last)})
	}
	text, err := xml.MarshalIndent(m, "", "    ")
	if err != nil {
		return nil, err
	}
	text = append([]byte("<?xml version=\"1.0\" ?>\n"), append(text, '\n')...)
	sum := sha256.Sum256(text)
	return bytes.Replace(text, []byte(zero), []byte(hex.EncodeToString(sum[:])), 1), nil
}

// joined merges spans that touch.
func joined(spans []span) (all []span) {
	for _, s := range spans {
		if n := len(all); n > 0 && s.first <= all[n-1].last+1 {
			all[n-1].last = max(all[n-1].last, s.last)
			continue
		}
		all = append(all, s)
	}
	return all
}
