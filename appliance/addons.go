package appliance

import (
	"context"
	"path/filepath"

	"rivulet/appliance/lifecycle"
	"rivulet/appliance/storage"
)

// The names of the add-ons among the components: what other clusters run as
// containers. A device is Ready without them.
const (
	cStorage = "storage"
)

func (s *System) runStorage(ctx context.Context, stage *lifecycle.Stage) error {
	return storage.New(storage.Config{
		Client: s.kube(), Dir: filepath.Join(s.cfg.Dirs.State, "storage"), NodeName: s.nodeName,
		Health: &s.health, Log: s.cfg.Log.With("component", cStorage),
	}).Run(ctx, stage.Ready)
}
