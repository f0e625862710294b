package flash

import (
	"encoding/hex"
	"encoding/xml"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// Range is a part of an image that has content, in bytes, From inclusive, To exclusive.
type Range struct {
	From, To int64
	SHA256   []byte // of the part; empty if not in the map
}

// bmapXML is bmaptool's file, version 2.
type bmapXML struct {
	XMLName      xml.Name `xml:"bmap"`
	Version      string   `xml:"version,attr"`
	ImageSize    string   `xml:"ImageSize"`
	BlockSize    string   `xml:"BlockSize"`
	ChecksumType string   `xml:"ChecksumType"`
	Ranges       []struct {
		Sum   string `xml:"chksum,attr"`
		Range string `xml:",chardata"`
	} `xml:"BlockMap>Range"`
}

// maxBmap bounds the file; that of an image of 16 GB has about 100 kB.
const maxBmap = 8 << 20

// parseBmap reads a map and the size of its image.
func parseBmap(r io.Reader) (ranges []Range, size int64, err error) {
	var m bmapXML
	if err := xml.NewDecoder(io.LimitReader(r, maxBmap)).Decode(&m); err != nil {
		return nil, 0, fmt.Errorf("it cannot be read: %w", err)
	}
	if v, _, _ := strings.Cut(strings.TrimSpace(m.Version), "."); v != "1" && v != "2" {
		return nil, 0, fmt.Errorf("its version is %q; 1 and 2 are known", m.Version)
	}
	size, err1 := strconv.ParseInt(strings.TrimSpace(m.ImageSize), 10, 64)
	block, err2 := strconv.ParseInt(strings.TrimSpace(m.BlockSize), 10, 64)
	if err1 != nil || err2 != nil || size <= 0 || size > maxImage || block < 512 || block > 1<<20 {
		return nil, 0, fmt.Errorf("sizes %q and %q make no sense", m.ImageSize, m.BlockSize)
	}
	sums := strings.TrimSpace(m.ChecksumType) == "sha256"
	last := int64(0)
	for _, x := range m.Ranges {
		from, to, ok := strings.Cut(strings.TrimSpace(x.Range), "-")
		if !ok {
			to = from
		}
		a, err1 := strconv.ParseInt(strings.TrimSpace(from), 10, 64)
		b, err2 := strconv.ParseInt(strings.TrimSpace(to), 10, 64)
		if err1 != nil || err2 != nil || a < 0 || b < a || b > size/block {
			return nil, 0, fmt.Errorf("range %q makes no sense", strings.TrimSpace(x.Range))
		}
		g := Range{From: a * block, To: min((b+1)*block, size)}
		if g.From < last || g.To <= g.From {
			return nil, 0, fmt.Errorf("range %q is not in order", strings.TrimSpace(x.Range))
		}
		last = g.To
		if sums && x.Sum != "" {
			if g.SHA256, err = hex.DecodeString(x.Sum); err != nil || len(g.SHA256) != 32 {
				return nil, 0, fmt.Errorf("%q is no checksum", x.Sum)
			}
		}
		ranges = append(ranges, g)
	}
	if len(ranges) == 0 {
		return nil, 0, fmt.Errorf("it names no content")
	}
	return ranges, size, nil
}
