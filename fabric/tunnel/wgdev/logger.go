package wgdev

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"golang.zx2c4.com/wireguard/device"
)

// logger forwards WireGuard's errors, each text at most once a minute: a link that is down would be reported for every
// packet.
func logger(log *slog.Logger) *device.Logger {
	l := &limited{log: log, last: map[string]time.Time{}}
	return &device.Logger{
		Verbosef: func(format string, args ...any) {
			if log.Enabled(context.Background(), slog.LevelDebug) {
				log.Debug("wireguard", "message", fmt.Sprintf(format, args...))
			}
		},
		Errorf: l.errorf,
	}
}

type limited struct {
	log  *slog.Logger
	mu   sync.Mutex
	last map[string]time.Time // by format
}

func (l *limited) errorf(format string, args ...any) {
	l.mu.Lock()
	now := time.Now()
	quiet := now.Sub(l.last[format]) < time.Minute
	if !quiet {
		l.last[format] = now
	}
	l.mu.Unlock()
	if !quiet {
		l.log.Warn("wireguard", "message", fmt.Sprintf(format, args...))
	}
}
