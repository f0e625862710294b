package offer

import (
	"strconv"
	"strings"

	"rivulet/fabric/cure"
)

// Ports are node ports of the LAN, First and Last included; the zero value is none.
type Ports struct{ First, Last uint16 }

// Has reports whether a port is one of them.
func (p Ports) Has(port int32) bool {
	return p.Last != 0 && port >= int32(p.First) && port <= int32(p.Last)
}

// And are the ports that both have.
func (p Ports) And(q Ports) Ports {
	out := Ports{max(p.First, q.First), min(p.Last, q.Last)}
	if out.First > out.Last || p.Last == 0 || q.Last == 0 {
		return Ports{}
	}
	return out
}

// ParsePorts reads a range of the engine's node ports, such as 31000-31199; an empty text is none.
func ParsePorts(s string) (Ports, error) {
	if s == "" {
		return Ports{}, nil
	}
	first, last, _ := strings.Cut(s, "-")
	low, err := strconv.ParseUint(first, 10, 16)
	high, err2 := strconv.ParseUint(last, 10, 16)
	switch {
	case err != nil || err2 != nil || strings.TrimLeft(first+last, "0123456789") != "":
		return Ports{}, cure.Errorf("%.30q is not a range of ports; write for example 31000-31199", s)
	case low < 30000 || high > 32767 || low > high:
		return Ports{}, cure.Errorf("%.30q is not within 30000-32767; write for example 31000-31199", s)
	}
	return Ports{uint16(low), uint16(high)}, nil
}
