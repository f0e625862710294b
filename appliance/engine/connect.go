package engine

import (
	"context"
	"time"

	"rivulet/appliance/health"
	"rivulet/appliance/lifecycle"
	"rivulet/fabric/changes"
)

// Pauses between attempts to connect to an API server that answers.
const firstConnect, lastConnect = 500 * time.Millisecond, 30 * time.Second

// untilConnected tries to connect to the engine until that succeeds or ctx, the engine's life, ends; it reports which.
// The stage shows the error meanwhile.
func (k *Supervisor) untilConnected(ctx context.Context, stage *lifecycle.Stage, connect func() error, pause time.Duration) bool {
	defer k.health.Clear(health.EngineUnusable)
	for ; ; pause = min(2*pause, lastConnect) {
		err := connect()
		if err == nil || ctx.Err() != nil {
			return err == nil
		}
		k.log.Error("cannot use the API server", "err", err, "retry", pause)
		k.health.Set(health.EngineUnusable, err.Error(), "it is tried again by itself; if that stays so, start Rivulet again: systemctl restart rivulet")
		stage.Waiting("the API server answers and cannot be used yet: %v", err)
		if !changes.Wait(ctx, pause) {
			return false
		}
	}
}
