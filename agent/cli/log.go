package cli

import (
	"sync"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"
)

// quietLibraries silences Kubernetes' client, whose log is one for the process: what matters in it comes back as an
// error, and is told as one.
var quietLibraries = sync.OnceFunc(func() { klog.SetLogger(logr.Discard()) })
