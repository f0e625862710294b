package config

import (
	"slices"
	"strings"
)

// elsewhere are words of settings that are made in another place.
var elsewhere = map[string]string{
	"wifi":         "Wi-Fi is the operating system's to set up",
	"wlan":         "Wi-Fi is the operating system's to set up",
	"hostname":     "the host name is the operating system's; the name for peers is set with: name",
	"ssh":          "ssh is the operating system's to set up",
	"ssh_keys":     "ssh is the operating system's to set up",
	"clustername":  "write name",
	"cluster_name": "write name",
	"mirrors":      "put it below registries",
	"configs":      "put it below registries",
	"campus":       "write burst",
	// Of k3s's config.yaml.
	"node-ip":               "a device chooses its own address; see: rivulet docs node-address",
	"cluster-cidr":          "networks of pods and Services are chosen at the first start (see: rivulet docs node-address); where peers' pods are seen is set with: tunnel.peerCIDR",
	"service-cidr":          "networks of pods and Services are chosen at the first start (see: rivulet docs node-address)",
	"node-name":             "write name",
	"data-dir":              "the folder is set by the flag --state",
	"server":                "devices find each other; to peer by hand: rivulet invite",
	"token":                 "devices find each other; to peer by hand: rivulet invite",
	"cluster-init":          "each device is a cluster of its own; devices find each other",
	"tls-san":               "for kubectl on other machines: rivulet kubeconfig",
	"write-kubeconfig-mode": "for kubectl on other machines: rivulet kubeconfig",
	"disable":               "what k3s adds to Kubernetes is not here: see: rivulet docs coming-from-k3s",
}

// unknownCure suggests the key that an unknown one may stand for.
func unknownCure(path, key string, names []string) string {
	if near := Nearest(key, names); near != "" {
		return "did you mean " + near + "?"
	}
	if cure, ok := elsewhere[strings.ToLower(key)]; ok && path == "" {
		return cure
	}
	var places []string
	for _, k := range Keys {
		if k == key || strings.HasSuffix(k, "."+key) {
			places = append(places, k)
		}
	}
	if len(places) > 0 {
		return "did you mean " + strings.Join(places, " or ") + "? it goes in that group"
	}
	return "known here: " + strings.Join(names, ", ")
}

// Nearest returns the name that word is most similar to, or "".
func Nearest(word string, names []string) string {
	best, least := "", 3
	for _, name := range names {
		w, n := fold(word), fold(name)
		d := distance(w, n)
		if limit := max(1, min(2, len(n)/2)); d > limit && !(len(w) >= 3 && strings.HasPrefix(n, w)) {
			continue
		}
		if d = min(d, 2); d < least {
			best, least = name, d
		}
	}
	return best
}

// fold makes max_pods, max-pods and MaxPods equal.
func fold(s string) string {
	s = strings.NewReplacer("_", "", "-", "").Replace(strings.ToLower(s))
	return s[:min(len(s), 64)]
}

// distance is the least number of letters to insert, delete, replace or swap with their neighbour to turn a into b
// (optimal string alignment).
func distance(a, b string) int {
	before, row := make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		next := make([]int, len(b)+1)
		next[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			next[j] = slices.Min([]int{row[j] + 1, next[j-1] + 1, row[j-1] + cost})
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				next[j] = min(next[j], before[j-2]+1)
			}
		}
		before, row = row, next
	}
	return row[len(b)]
}
