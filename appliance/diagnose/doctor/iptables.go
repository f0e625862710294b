package doctor

import (
	"context"
	"fmt"
	"strings"

	"rivulet/appliance/health"
	"rivulet/image/bundle"
)

var iptables = Probe{Kind: health.Iptables, Title: "iptables", Run: probeIptables}

func probeIptables(ctx context.Context, e *Env) Result {
	version, err := e.Exec(ctx, "iptables", "--version")
	if err != nil {
		if _, carried := bundle.Embedded(); carried || len(e.glob(e.State+"/bundle/*/netfilter/nft/iptables")) > 0 {
			return Passf("the machine has none; Rivulet's own is used")
		}
		return Failf("install it (apt install iptables); Rivulet goes on by itself", "there is no iptables: Services cannot work")
	}
	version = strings.TrimSpace(version)
	legacy, legacyErr := countRules(ctx, e, "iptables-legacy-save")
	nft, nftErr := countRules(ctx, e, "iptables-nft-save")
	if legacyErr == nil && nftErr == nil && legacy > 0 && nft > 0 {
		other, flush := "iptables-legacy", "iptables-legacy"
		if strings.Contains(version, "legacy") {
			other, flush = "iptables-nft", "iptables-nft"
		}
		return Warnf(fmt.Sprintf("find out who wrote those of %s; if nobody needs them: %s -F; %s -t nat -F", other, flush, flush),
			"rules in both backends (%d legacy, %d nft), a packet passes both; %s is in use", legacy, nft, version)
	}
	return Passf("%s", version)
}

// countRules leaves policies and empty chains out.
func countRules(ctx context.Context, e *Env, save string) (n int, err error) {
	out, err := e.Exec(ctx, save)
	for line := range strings.Lines(out) {
		if strings.HasPrefix(line, "-A ") {
			n++
		}
	}
	return n, err
}
