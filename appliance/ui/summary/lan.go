package summary

import (
	"cmp"
	"slices"

	"k8s.io/apimachinery/pkg/util/validation"

	"rivulet/fabric/peer"
)

// Neighbour is a device on the LAN.
type Neighbour struct {
	Name, ID string
	// URL is its status page, if it has one; empty if its name cannot be that of a host.
	URL   string
	State string
	This  bool
}

const (
	mostNeighbours = 200
	lanSource      = "mdns" // the source that sees the LAN only
)

// neighbours are the devices that multicast finds now; those that the operator denied are left out.
func (v *View) neighbours(all []peer.View) {
	state := "starting"
	if v.Ready {
		state = "ready"
	}
	v.LAN = []Neighbour{{Name: v.Name, ID: v.ID, URL: v.URL, State: state, This: true}}
	for _, p := range all {
		if p.State == peer.Denied || !slices.Contains(p.Found, lanSource) {
			continue
		}
		if len(v.LAN) == mostNeighbours {
			v.MoreLAN++
			continue
		}
		n := Neighbour{Name: Line(cmp.Or(p.Name, p.ID.Short())), ID: p.ID.Short(), State: string(p.State)}
		if len(validation.IsDNS1123Label(p.Name)) == 0 {
			n.URL = "http://" + p.Name + ".local"
		}
		v.LAN = append(v.LAN, n)
	}
	slices.SortStableFunc(v.LAN, func(x, y Neighbour) int { return cmp.Or(cmp.Compare(x.Name, y.Name), cmp.Compare(x.ID, y.ID)) })
}
