// The search runs in a worker, and browsers start none for pages that are opened as files: there, run it in a hidden frame.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.documentElement.append(frame)
      const inside = (this.inside = frame.contentWindow)
      inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }))
      const run = (source) =>
        new Promise((done, failed) => {
          const script = inside.document.createElement("script")
          Object.assign(script, { src: new URL(source, document.baseURI), onload: done, onerror: failed, async: false })
          inside.document.documentElement.append(script)
        })
      inside.importScripts = (...sources) => Promise.all(sources.map(run))
      this.ready = run(url)
    }

    addEventListener(...rest) { super.addEventListener(...rest) }

    set onmessage(listener) { this.addEventListener("message", listener) }

    postMessage(data) { this.ready.then(() => this.inside.dispatchEvent(new MessageEvent("message", { data }))) }

    terminate() {}
  }
}
