// Package problems merges the problems of all components into the device's one list, with specific codes if there are
// some. A problem that a component clears is removed.
//
// It reads the components, and <state> for files set aside, and alone writes the list.
package problems

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"rivulet/appliance/health"
	"rivulet/fabric"
	"rivulet/fabric/cure"
	"rivulet/fabric/rpc"
	"rivulet/offload"
	"rivulet/offload/target"
)

// fabricKinds are the fabric's own codes.
var fabricKinds = []*health.Kind{health.Tunnel, health.ControlPort, health.Broker}

// Collect updates the list from the fabric, and from offload or, on a worker, its tenants' isolation. A component that has
// not started is nil, and leaves the list unchanged. names are configured peers that cannot be resolved, each with the
// reason and its cure.
func Collect(t *health.Tracker, fab *fabric.Fabric, off *offload.Offload, isolation, names map[string]string) {
	if fab != nil {
		reportFabric(t, fab.Problems())
		reportAlarms(t, fab.Alarms())
	}
	reportNames(t, names)
	if isolation != nil {
		reportOffload(t, isolation)
	}
	if off != nil {
		reportOffload(t, off.Problems())
		reportCutOff(t, off.VirtualNodes())
		reportUnknown(t, off.UnknownVolumes())
	}
}

// reportNames reports the names that cannot be resolved.
func reportNames(t *health.Tracker, names map[string]string) {
	said := map[string][2]string{}
	for name, why := range names {
		text, cure, _ := strings.Cut(why, "; ")
		said[name] = [2]string{text, cure}
	}
	t.Replace(health.PeerAddress, said)
}

// reportFabric merges the fabric's list.
func reportFabric(t *health.Tracker, problems []rpc.Error) {
	said := map[string]map[string][2]string{}
	for _, p := range problems {
		kind, subject := health.Fabric.Code, p.Code
		for _, k := range fabricKinds {
			if k.Code == p.Code {
				kind, subject = k.Code, ""
			}
		}
		if said[kind] == nil {
			said[kind] = map[string][2]string{}
		}
		said[kind][subject] = [2]string{p.Message, p.Cure}
	}
	for _, k := range append(slices.Clone(fabricKinds), health.Fabric) {
		t.Replace(k, said[k.Code])
	}
}

// reportOffload merges offload's list, errors by part.
func reportOffload(t *health.Tracker, problems map[string]string) {
	said := map[string][2]string{}
	for part, text := range problems {
		text, help := cure.Cut(text)
		said[part] = [2]string{text, cmp.Or(help, "it is tried again by itself")}
	}
	t.Replace(health.Offload, said)
}

// reportCutOff reports the peers that hold pods of this cluster and do not answer.
func reportCutOff(t *health.Tracker, nodes []offload.VirtualNode) {
	said := map[string][2]string{}
	for _, n := range nodes {
		if away := n.Pods - len(n.Refused); n.Kind == target.Peer && !n.Ready && away > 0 {
			said[n.Name] = [2]string{
				fmt.Sprintf("%d pods of this cluster are there, and nobody here sees how they are", away),
				fmt.Sprintf("find the cause: rivulet doctor peer %s; if it is gone for good: rivulet unpeer %s --force", n.Target, n.Target),
			}
		}
	}
	t.Replace(health.PeerCutOff, said)
}

// reportUnknown reports the data on peers that home's datastore does not know, by virtual node.
func reportUnknown(t *health.Tracker, volumes map[string][]string) {
	said := map[string][2]string{}
	for node, refs := range volumes {
		said[node] = [2]string{
			fmt.Sprintf("this cluster's datastore, which was put back, does not know data that are there: %d claims; nothing deletes them", len(refs)),
			fmt.Sprintf("list them: rivulet volumes; for each, as for this one: rivulet volumes adopt %s; or: rivulet volumes delete %[1]s", refs[0]),
		}
	}
	t.Replace(health.VolumesUnknown, said)
}

// alarmKinds are the codes of fabric.Alarms.
var alarmKinds = map[string]*health.Kind{"key-changed": health.KeyChanged, "waiting": health.PeerWaiting, "trust-lan": health.TrustLAN}

// reportAlarms merges suspicious events about other clusters.
func reportAlarms(t *health.Tracker, alarms []fabric.Alarm) {
	for code, kind := range alarmKinds {
		said := map[string][2]string{}
		for _, a := range alarms {
			if a.Code == code {
				said[a.Peer] = [2]string{a.Text, a.Cure}
			}
		}
		t.Replace(kind, said)
	}
}
