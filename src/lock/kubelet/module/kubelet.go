// The kubelet as an ordinary Go dependency: what k8s.io/kubernetes/cmd/kubelet itself consists of, without the
// replacements by local folders that keep that program from being installed as a module.
package main

import (
	"context"
	"os"

	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"          // --logging-format=json
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // the client's metrics
	_ "k8s.io/component-base/metrics/prometheus/version"  // the build's metric
	"k8s.io/kubernetes/cmd/kubelet/app"
)

func main() {
	os.Exit(cli.Run(app.NewKubeletCommand(context.Background())))
}
