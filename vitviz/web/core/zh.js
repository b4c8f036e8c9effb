// The texts of the page in Chinese.

export const ZH = {
  tabs: { explore: '探索', explain: '解释', heads: '注意力头', layers: '层', lecture: '课堂', help: '如何阅读' },
  // Texts of app.html, keyed by their English.
  page: {
    'Skip to the photograph': '跳到照片',
    'Drop a photograph, point at a patch, and see where every head of a Vision Transformer looks.':
      '拖入一张照片，指向一个图块，看 Vision Transformer 的每个注意力头在关注哪里。',
    'Where the model ran, the time of one forward pass, and the number of patches': '运行设备、一次前向计算的时间和图块数',
    'Switch between light and dark': '切换浅色和深色', Model: '模型', 'Name of another model': '另一个模型的名称',
    Load: '载入', 'Upload a checkpoint': '上传权重文件', Close: '关闭', Views: '视图', 'Full screen': '全屏',
    'Full screen (f)': '全屏（f）', Photograph: '照片', 'Your photo': '您的照片', Webcam: '摄像头', Paste: '粘贴',
    'or drop one anywhere on the page': '或把照片拖到页面任意处', Examples: '示例', 'Input size': '输入尺寸',
    'The model’s input': '模型的输入', 'The photograph after preprocessing': '预处理后的照片',
    'Take the photograph': '拍照', Cancel: '取消', 'Attention explorer': '注意力浏览器',
    'Compare with': '对比：', 'another layer': '另一层', 'another head': '另一个头',
    'another photograph': '另一张照片', 'another model': '另一个模型',
    'Cut the photograph into more and smaller patches': '把照片切成更多、更小的图块',
    'This shows what the token attends to, not why the model predicts a class.':
      '这里显示词元关注什么，不是模型预测某个类别的原因。',
    'What is': '什么是', patch: '图块', layer: '层', head: '头', spread: '分散度',
    ['patch: one of the square tiles that the photograph is cut into. The model reads the photograph as a '
      + 'sequence of patches.']:
      '图块：照片被切成的方块。模型把照片读作图块的序列。',
    ['CLS: an extra token beside the patches. It contains no part of the photograph and collects the '
      + 'information that the model needs to classify it.']:
      'CLS：图块之外的一个词元，不含照片的任何部分，用来收集分类所需的信息。',
    'layer: one processing step of the model. In each layer, every token takes in information from all tokens.':
      '层：模型的一个处理步骤。在每一层，每个词元都从所有词元获取信息。',
    ['head: each layer computes attention several times in parallel, once per head. Different heads '
      + 'attend to different things.']:
      '头：每一层并行计算多次注意力，每个头一次。不同的头关注不同的内容。',
    'spread: 0 % if all attention is on one token, 100 % if every token gets the same share.':
      '分散度：所有注意力集中在一个词元上时为 0 %，均匀分布时为 100 %。',
    'Search the classes': '搜索类别', Search: '搜索', Classes: '类别',
    'Other models with as many classes': '类别同样多的其他模型', From: '起点', Unpin: '取消固定', Show: '显示',
    'All patches': '所有图块', Attention: '注意力', Rollout: 'Rollout',
    'what it attends to': '它关注什么', 'what attends to it': '什么关注它', 'Rollout options': 'Rollout 选项',
    'Combine heads by': '合并各个头', 'Discard the weakest': '舍去最弱的', 'Skip connection': '跳跃连接',
    'First layer': '起始层', every: '每', 'Animation speed': '动画速度', Compare: '对比', 'Copy link': '复制链接',
    'Copy link with photo': '复制含照片的链接', 'Save picture': '保存图片', 'Save as HTML': '保存为 HTML',
    'Keys ?': '快捷键 ?', Keys: '快捷键', 'Strongest patches': '最强的图块', More: '更多', Opacity: '不透明度',
    'Opacity follows the value': '不透明度随数值变化', 'Photograph only': '只显示照片', 'Patch grid': '图块网格',
    Smooth: '平滑', 'Number the strongest': '给最强的图块编号', 'Colours': '颜色', Gamma: '伽马', Scale: '色标',
    'Scale of the thumbnails': '缩略图的色标', 'per map': '每图各自', shared: '共用',
    'Every head of every layer': '每一层的每个头', 'The full attention matrix of one head': '一个头的完整注意力矩阵',
    Explanations: '解释', 'Why this class': '为什么是这个类别', Class: '类别', 'rather than': '而不是',
    'What if we hide these patches?': '如果遮住这些图块？',
    'Click patches on the photograph to hide them, or hide the strongest ones.': '点击照片上的图块将其遮住，或遮住最强的图块。',
    'Hide the strongest': '遮住最强的', 'Show all patches again': '重新显示所有图块', Method: '方法',
    'Is this map faithful?': '这张图可信吗？', Heads: '注意力头',
    'The map shows the head under the pointer, from the token chosen in Explore.':
      '图中是指针所指的头，起点是“探索”中选定的词元。',
    'Prediction with heads switched off': '关闭部分头之后的预测', 'Switch all on': '全部打开', 'Colour by': '着色依据',
    'Click to switch heads off': '点击关闭头', 'Layers down, heads across': '行为层，列为头', Layers: '层', Layer: '层',
    'The prediction after each layer': '每一层之后的预测',
    ['The final norm and the classifier are applied to the tokens after each layer (the “logit lens”). '
      + 'The classifier was not trained on early layers, so the curves show what it would predict there, not '
      + 'everything that a layer has computed.']:
      '把最后的归一化和分类器用于每一层之后的词元（“logit lens”）。分类器没有在靠前的层上训练过，所以曲线显示它在那里会预测什么，而不是该层计算出的全部内容。',
    'Which patches look alike to the model': '在模型看来哪些图块相似',
    ['The first three principal components of the patches after each layer, shown as red, green and blue. '
      + 'Patches of similar colour are similar to the model; the colours themselves mean nothing. The number '
      + 'is the share of the variance that the three components explain.']:
      '每一层之后图块的前三个主成分，用红、绿、蓝表示。颜色相近的图块在模型看来相似；颜色本身没有含义。数字是三个主成分解释的方差比例。',
    'The prediction from each patch': '由每个图块得到的预测',
    ['The classifier is applied to each patch as if it were the only one. If the classifier also reads '
      + 'CLS, CLS is added to every patch. Late layers copy global information into the patches: a uniform '
      + 'colour in the last layers does not mean that every patch shows the class.']:
      '分类器单独用于每个图块。如果分类器还读取 CLS，则给每个图块加上 CLS。靠后的层把全局信息复制到图块中：最后几层颜色均匀，并不表示每个图块都属于这个类别。',
    Lecture: '课堂', 'How to read this': '如何阅读',
  },
  // The blocks of the tab "How to read this" in page order, as HTML.
  help: [
    '如何阅读',
    '<b>您看到的是什么。</b>模型把照片切成方形图块。每个图块成为一个<em>词元</em>，即一串数字。另有一个词元 <b>CLS</b>，收集分类所需的信息。在每一层，每个词元都从所有词元获取信息；权重就'
      + '是它的<b>注意力</b>。一层并行计算多次注意力，每个<b>头</b>一次。',
    '<b>颜色。</b>所选词元越关注一个图块，图块越亮。每一行注意力的总和是 100 %，其中一部分可能在照片之外，在 CLS 或寄存器词元上；页面会写出这一份额。色条表示色标。默认每张缩略图有各自的色标，请比'
      + '较形状而不是亮度；也可以让缩略图共用一个色标。',
    '<b>起点。</b>注意力总是从一个词元出发。从 <em>CLS</em> 出发，可以看到模型在哪里收集预测所需的信息。点击一个图块，可以看到它关注哪里。距离因头和模型而异，“注意力头”标签页给出测量值。',
    '<b>合并的头。</b>所有头的平均仍是总和为 100 % 的分布。各头的最大值或最小值不是，因此页面把这样的行重新缩放到 100 %。',
    '<b>注意力</b>显示一层。<b>Rollout</b>（Abnar 和 Zuidema，2020）合并所有层：它把各层的注意力矩阵相乘，跳跃连接占一半权重，由此估计哪些图块对该词元有贡献。',
    '<b>解释。</b>这些图显示哪些图块支持一个类别。各种方法依据不同：通过注意力的梯度（GAE、LeGrad）、逐层回传的相关性（AttnLRP），或遮住图块的影响（遮挡）。<em>而不是</em>用来比较两'
      + '个类别。在带符号的图中，红色支持该类别，蓝色反对它。各种方法并不一致，请加以检验：<b>这张图可信吗？</b>会遮住图中排名最高的图块，并与随机遮住图块相比较。如果概率下降得不比随机更快，这张图就不能解释预测'
      + '。',
    '<b>注意力头</b>和<b>层。</b>“注意力头”标签页按统计量（例如注意力距离）比较所有的头。点击一个头可在“探索”中查看，也可以关闭一些头，观察预测的变化。“层”标签页显示分类器在每一层之后会预测什么'
      + '，以及哪些图块相似。',
    '这些图不能说明什么',
    '<b>在哪里，而不是为什么。</b>注意力表示一个词元读取了什么，不表示模型如何使用它。一个图块可以得到注意力而不影响结果。注意力和 rollout 对每个类别都相同。',
    '<b>Rollout 很粗略。</b>它同等对待所有的头，忽略值、MLP 和符号。在很深的模型中，每个词元的结果趋于同一团亮斑。',
    '<b>平均会掩盖单个的头。</b>对头取平均、最大和最小得到三幅不同的图。下结论之前，请看单个的头。',
    '<b>模型必须选择。</b>分类器只认识训练时的类别，它们列在预测下方。对于其他任何东西，它给出最接近的类别。如果模型用类别已知的照片校准过，当概率低于使至少 90 % 的预测正确的数值时，页面会写“不确定”'
      + '。这个阈值不能识别不属于任何类别的物体。',
    '<b>空白背景得到很高的注意力</b>很常见：大模型把这样的图块当作草稿空间（Darcet 等，2024）。',
    '其他模型和更小的图块',
    '顶部的<b>菜单</b>列出本机的模型和已发布的模型，后者在选择时下载。页面打开时使用您上次在这个浏览器中选择的模型。如果菜单末尾有<em>另一个模型</em>，可以输入名称或上传文件。没有类别名称的模型只显'
      + '示注意力，没有预测。',
    '<b>输入尺寸</b>在切割之前放大照片，因此图块更多、更小。尺寸加倍，图块是四倍，计算量略多于四倍。模型在训练时的尺寸下效果最好：尺寸更大时图更精细，但预测可能变差。',
    '操作',
    '点击一个图块，或选中照片后使用方向键；<kbd>c</kbd> 返回 CLS。点击照片旁的头或层可以放大。<kbd>?</kbd> 列出所有按键。',
  ],
  patch: '第 {0} 行第 {1} 列',
  fits: '以 {0} 像素打开',
  lecture: { path: '照片在模型中的处理流程', back: '上一步', next: '下一步', code: '二维码', notes: '讲稿', close: '关闭',
    ask: '问题', answer: '答案', step: '第', waiting: '正在载入这张照片的数字……',
    own: '链接不包含您自己的照片，照片只保存在这个浏览器里。',
    here: '这个地址只在本机有效。请在手机能够访问的网络上提供此页面。',
    scan: '在手机上打开这一步' },
  stages: ['像素', '图块', '嵌入', '位置', '一个注意力头', '所有注意力头', '预测', '解释'],
  pixels: {
    photo: '照片', input: '模型的输入', channels: '输入的三个通道',
    level: '亮度，0 到 255', share: '÷ 255', less: '− 均值', by: '÷ 标准差', number: '模型的输入值',
    size: '{0} × {1} 像素 = {2} 个数', lost: '只保留了 {0} 的数值。',
    enlarged: '照片被放大：输入的数值更多，但细节没有增加。',
    whole: '输入包含整张照片，没有裁剪。', cropped: '输入包含照片面积的 {0}，斜线部分被裁掉了。',
    pixel: '第 {0} 行第 {1} 列的像素。指向其他像素可查看它的数值。',
    aria: '照片。斜线部分已被裁掉。用方向键移动图块。',
  },
  patches: {
    grid: '网格：点击一个图块', pixels: '它的像素', which: '第 {0} 行第 {1} 列的图块',
    reading: '{0}，图块内第 {1} 行第 {2} 列：{3}（亮度 {4}）',
    count: '它的 {0} × {0} × 3 = {1} 个数，排成一行',
    all: '所有图块按阅读顺序排成一行：这是第 {0} 个，共 {1} 个',
    aria: '带图块网格的照片。用方向键移动图块。',
  },
  embedding: {
    patch: '图块', filter: '滤波器', terms: '乘积',
    map: '第 {0} 个滤波器对每个图块的响应', sum: '图块乘以第 {0} 个滤波器：一个数',
    adds: '{0} 个乘积之和为 {1}，加上偏置 {2}，得到 {3}',
    vector: '全部 {0} 个滤波器：图块成为 {0} 维向量',
    wall: '{0} 个滤波器的图像：点击一个', unit: '滤波器响应', slider: '滤波器编号',
    aria: '叠加了滤波器响应的照片。用方向键移动图块。',
    some: '共有 {0} 个滤波器，本页无法全部显示，这里是范数最大的 {1} 个。',
  },
  positions: {
    tokens: '{0} 个词元，每个 {1} 个数',
    start: '{0}：不是从照片上切下来的。它们的初值由训练得到，对每张照片都一样；各层再从图块中收集信息。',
    alone: '这个模型在图块前没有其他词元，由所有图块得出预测。',
    learned: '这个模型：学习得到的位置编码', sincos: '这个模型：固定的正弦和余弦位置编码',
    sincos1d: '这个模型：按阅读顺序的固定正弦和余弦位置编码',
    rotary: '这个模型：每层中的旋转位置编码',
    'learned+rotary': '这个模型：学习得到的位置编码，以及每层中的旋转位置编码',
    relative: '这个模型不加位置编码：注意力为每个行列差加上一个学习得到的数', none: '这个模型没有位置编码',
    sine: '对照：正弦和余弦位置编码',
    similar: '第 {0} 行第 {1} 列的位置与其他各位置的相似度：两个向量的余弦。它与照片内容无关。',
    wall: '网格各处位置的相似度图', unit: '余弦', patch: '图块',
    aria: '叠加在照片上的位置相似度。用方向键移动图块。',
    missing: '无法取得这个模型的位置编码，图中显示的是正弦和余弦位置编码。',
  },
  attention: { layer: '层', head: '头', from: '起点', map: '图', scaled: '查询 · 键 / √d', weights: 'softmax',
    given: 'softmax × 值的范数', first: '查询乘以键', second: '除以 √d，再做 softmax', third: '对值加权求和',
    query: '查询：', key: '键：', product: '逐项乘积', all: '每个词元的 softmax', token: '词元', dot: 'q · k',
    powers: 'e^(s − 最大值)', other: '个其他词元', sum: '总和', out: 'softmax × 值 的总和',
    beside: '在图像之外', waiting: '正在载入这一层的数字……', looks: '这个头关注哪里',
    more: '{0} 个最大的乘积，以及其余 {1} 个之和' },
  heads: {
    kinds: '这个模型有哪些种类的头：点击一种',
    prefix: '关注 CLS 或寄存器', prefixRule: '这些词元得到 {0} 以上',
    self: '关注查询图块自身', selfRule: '查询图块得到 {0} 以上',
    near: '关注相邻图块', nearRule: '查询图块和周围八个图块得到 {0} 以上',
    even: '均匀地关注所有词元', evenRule: '分散度 {0} 以上',
    same: '对任何查询都关注同样的图块', sameRule: '各行相差不到 {0}',
    choosy: '取决于查询图块的内容', choosyRule: '其余的头',
    studied: '对 {1} 个图块中的 {0} 个查询图块取平均。阈值由我们设定，有些头接近阈值。',
    reading: '正在读取所有头的注意力：{0}', title: '第 {0} 层，{1}，从这个图块出发',
    head: '第 {0} 个头', mean: '所有头的平均', max: '所有头的最大值', min: '所有头的最小值',
    wall: '每一层的每个头，从这个图块出发：点击一个。每张图有各自的色标',
    chart: '各个头的注意力距离（图块数）', across: '层，1 到 {0}',
    chartWords: '每个点代表一个头：从图块到它所关注图块的平均距离。',
    unit: '的注意力', aria: '叠加了一个头的注意力的照片。用方向键移动图块。',
  },
  prediction: { now: '第 {0} 层之后，分类器会预测', after: '第 {0} 层之后', rest: '所有其他类别', each: '每一层之后', image: '由整张图像预测',
    patch: '由此图块预测', layer: '层', class: '类别', map: '由每个图块预测', last: '这就是模型的预测。',
    alone: '分类器单独应用于每个图块。靠后的层会把全局信息复制到所有图块，因此处处同色并不表示每个图块都属于这个类别。',
    none: '这个模型没有类别名称，因此没有预测。', waiting: '正在读取各层' },
  explanation: {
    titles: ['Rollout：注意力来自哪里', 'GAE：类别的依据（基于梯度）'], test: '逐个显示图块，比较两张图', stop: '停止',
    random: '随机顺序的平均', band: '随机顺序的范围', chart: '插入曲线', across: '已显示的图块', found: '分歧最大的地方',
    without: '去掉这些图块及其周围八个图块',
    none: '这个模型没有类别名称，因此没有可以解释的预测。', waiting: '正在计算两张图', testing: '正在检验两张图',
    alike: (/** @type {string} */ value) => `两张图的等级相关：${value}（1 表示顺序相同，0 表示无关）。`,
    /** @param {number} number @param {string} patch @param {number[]} ranks @param {number} of */
    differ: (number, patch, ranks, of) => `图块 ${number}（${patch}）：在 ${of} 个图块中，rollout 排第 ${ranks[0]}，GAE 排第 ${
      ranks[1]}。`,
    /** @param {number} number @param {string} label @param {string} before @param {string} after */
    lost: (number, label, before, after) => `去掉图块 ${number} 及其周围的图块：${label} ${before} → ${after}。`,
    /** @param {number[]} areas @param {number} chance */
    areas: (areas, chance) => `曲线下面积：rollout ${areas[0].toFixed(2)}，GAE ${areas[1].toFixed(2)}，随机 ${
      chance.toFixed(2)}。面积越大，说明图把关键图块排得越靠前。`,
  },
};
