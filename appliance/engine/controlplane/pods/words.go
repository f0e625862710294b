package pods

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// overQuota matches an API server's error for a pod above a provider's quota.
var overQuota = regexp.MustCompile(`exceeded quota: rivulet, requested: ([\w./=,-]+), used: `)

// full is the message for a pod that does not fit beside those of the other virtual clusters.
const full = "the course is full: it requests %s, and the virtual clusters of this device have that much no more; delete what is not needed, or wait until others do"

// overStorage is the message for a claim above the quota of its virtual cluster.
const overStorage = "exceeded quota: it requests %s of storage, and the quota of this virtual cluster has that much no more; delete claims that are not needed, or have its owner raise the quota"

// terms replaces terms that have another name inside, in this order.
var terms = strings.NewReplacer(
	"this pod cannot run on another cluster because of", "this pod cannot run in a virtual cluster because of",
	"(the host's network is home's)", "(the host's network is the host's)",
	"(the host's processes are home's)", "(the host's processes are the host's)",
	"(the host's IPC is home's)", "(the host's IPC is the host's)",
	"devices claimed at home are not elsewhere", "a virtual cluster has no devices",
	"the path is on home's disk", "the path is the host's",
	"the driver is home's", "the driver is the host's",
	"would open on another cluster's host", "would open on the host",
	"at home only", "in this virtual cluster only",
)

// elsewhere matches cures that users inside cannot apply: commands of the host, and objects beside it.
var elsewhere = regexp.MustCompile(`\brivulet [a-z]+\b|\bat home\b|rivulet\.dev/offload\b|\bpeers?\b|\bPEER\b|\bhome\b`)

// words converts a message of the consumer to the terms of a virtual cluster. It removes cures that users inside cannot
// apply; without another one it names the owner of the host.
func words(text string) string {
	if m := overQuota.FindStringSubmatch(text); m != nil {
		var lacks []string
		for one := range strings.SplitSeq(m[1], ",") {
			name, amount, _ := strings.Cut(strings.TrimPrefix(one, "requests."), "=")
			if name == "storage" { // not shared: the quota alone bounds it
				return fmt.Sprintf(overStorage, amount)
			}
			lacks = append(lacks, amount+" "+name)
		}
		return fmt.Sprintf(full, strings.Join(lacks, ", "))
	}
	parts := strings.Split(terms.Replace(text), "; ")
	kept := parts[:1]
	for _, cure := range parts[1:] {
		ways := slices.DeleteFunc(strings.Split(cure, ", or "), elsewhere.MatchString)
		if len(ways) > 0 {
			kept = append(kept, strings.Join(ways, ", or "))
		}
	}
	if len(kept) == 1 && len(parts) > 1 {
		kept = append(kept, "the owner of this virtual cluster's device can help")
	}
	return strings.Join(kept, "; ")
}
