package node

import (
	"fmt"
	"log/slog"

	vklog "github.com/virtual-kubelet/virtual-kubelet/log"
)

// logger writes virtual-kubelet's messages to slog, one level lower: its information is for debugging only.
type logger struct{ *slog.Logger }

func (l logger) Debug(...any)          {}
func (l logger) Debugf(string, ...any) {}

func (l logger) Info(a ...any)             { l.Logger.Debug(fmt.Sprint(a...)) }
func (l logger) Infof(f string, a ...any)  { l.Logger.Debug(fmt.Sprintf(f, a...)) }
func (l logger) Warn(a ...any)             { l.Logger.Info(fmt.Sprint(a...)) }
func (l logger) Warnf(f string, a ...any)  { l.Logger.Info(fmt.Sprintf(f, a...)) }
func (l logger) Error(a ...any)            { l.Logger.Warn(fmt.Sprint(a...)) }
func (l logger) Errorf(f string, a ...any) { l.Logger.Warn(fmt.Sprintf(f, a...)) }
func (l logger) Fatal(a ...any)            { l.Logger.Error(fmt.Sprint(a...)) }
func (l logger) Fatalf(f string, a ...any) { l.Logger.Error(fmt.Sprintf(f, a...)) }

// Fields may hold whole objects; only the error is logged.
func (l logger) WithField(string, any) vklog.Logger   { return l }
func (l logger) WithFields(vklog.Fields) vklog.Logger { return l }
func (l logger) WithError(err error) vklog.Logger     { return logger{l.With("err", err)} }
