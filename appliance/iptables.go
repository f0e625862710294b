package appliance

import (
	"context"

	"rivulet/appliance/iptables"
	"rivulet/image/bundle"
)

// chooseIptables is asked at each start of the engine.
func (s *System) chooseIptables(helpers bundle.Dir) func(context.Context) (iptables.Choice, error) {
	return func(ctx context.Context) (iptables.Choice, error) {
		return iptables.Choose(ctx, helpers.Netfilter())
	}
}
